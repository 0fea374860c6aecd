"""Generates the text that the embedded default model is trained on.

Every document is made here from templates and word tables, so the model owes
nothing to anybody else's text.  A template has two constructs: `[a|b|c]`
picks one alternative (they nest, and one may be empty) and `{key}` inserts a
word from the story's context.  `a_ word` becomes "a word" or "an word".

    python corpus.py 5 --seed 1        # print five documents
"""

import argparse
import functools
import json
import random
import re

BOS = "<|endoftext|>"
IM_START = "<|im_start|>"
IM_END = "<|im_end|>"

# --------------------------------------------------------------------------
# The template language


def _parse(text, i, closing):
    """Parses a sequence up to `|` or `]` into strings, ("var", k) and ("alt", [...])."""
    parts, buf = [], []

    def flush():
        if buf:
            parts.append("".join(buf))
            buf.clear()

    while i < len(text):
        ch = text[i]
        if closing and ch in "|]":
            break
        if ch == "[":
            flush()
            options = []
            while True:
                option, i = _parse(text, i + 1, True)
                options.append(option)
                if text[i] == "]":
                    break
            parts.append(("alt", options))
        elif ch == "{":
            flush()
            end = text.index("}", i)
            parts.append(("var", text[i + 1 : end]))
            i = end
        else:
            buf.append(ch)
        i += 1
    flush()
    return parts, i


@functools.lru_cache(maxsize=None)
def parse(text):
    return _parse(text, 0, False)[0]


def first_most(rng, options):
    """The first option is the likeliest, so that greedy decoding seldom meets a tie."""
    return rng.choices(options, [1 / (i + 1) for i in range(len(options))])[0]


def render(parts, ctx, rng):
    out = []
    for part in parts:
        if isinstance(part, str):
            out.append(part)
        elif part[0] == "var":
            # A value may itself be a template.
            out.append(render(parse(ctx[part[1]]), ctx, rng))
        else:
            out.append(render(first_most(rng, part[1]), ctx, rng))
    return "".join(out)


def tidy(text):
    text = re.sub(r"\b([Aa])_ (?=[aeiouAEIOU])", r"\1n ", text)
    text = text.replace("a_ ", "a ").replace("A_ ", "A ")
    text = re.sub(r" +", " ", text).strip()
    text = re.sub(r" ([.,!?])", r"\1", text)
    # Sentence starts.  A quote that ends in ! or ? may go on in lower case.
    text = re.sub(r"(^|[.!?] |[.]\" |\n)([a-z])", lambda m: m[1] + m[2].upper(), text)
    return text


# --------------------------------------------------------------------------
# Word tables

GIRLS = """Mia Anna Lily Rosa Emma Nora Clara Ella Ruby Zoe Lucy Ivy Maya Nina Sara Tara
Lena Ada Eva Amy Kate Jane Molly Daisy Hazel Olive Penny Sofia Luna Stella Alice Grace
Hanna Iris Julia Leila Marta Naomi Petra Wilma Yara Greta Elsa Frida Ines Kira Mina""".split()
BOYS = """Tom Ben Sam Max Leo Jack Finn Noah Oscar Theo Hugo Felix Milo Otto Paul Peter
Adam Alex Carl Dan Eric Fred George Henry Ivan Jacob Karl Liam Mark Nick Owen Ralph
Simon Tim Victor Will Yusuf Emil Anton Boris Omar Rafi Luis Marco Nils Pablo Toby""".split()
PETS = """Pip Dot Fuzzy Nibbles Bramble Pepper Clover Hazelnut Biscuit Button Pebble Mossy
Whisker Patch Sunny Rusty Ginger Snowy Tiny Bubbles Acorn Maple Poppy Socks Scout Fern
Willow Berry Cinnamon Chip Cocoa Domino Feather Honey Jumper Mango Olly Pickle Twig""".split()
ONSETS = "B D F G H J K L M N P R S T V W Z Br Fl Gr Kr Pl Tr Sh Th".split()
RIMES = "al an ar el en il im in ol om or un ur o i a ee oo".split()
TAILS = ["", "", "a", "o", "i", "by", "da", "kin", "la", "ley", "lo", "ma", "mo", "na", "ny", "ra", "ric", "ro", "ta", "to", "wen"]

# kind: (home, food, a true fact, what it is like, sound)
ANIMALS = {
    "fox": ("in a den under an old oak tree", "berries", "A fox has a bushy tail and very good ears", "clever", "barks"),
    "rabbit": ("in a warm burrow under the hill", "carrots", "A rabbit has long ears and strong back legs", "quick", "squeaks"),
    "bear": ("in a deep cave near the river", "honey", "A bear sleeps for most of the winter", "strong", "growls"),
    "mouse": ("in a tiny hole behind the kitchen wall", "cheese", "A mouse is small, but it can climb very well", "tiny", "squeaks"),
    "owl": ("in a hollow tree at the edge of the forest", "nuts", "An owl sleeps during the day and flies at night", "wise", "hoots"),
    "frog": ("beside a green pond", "flies", "A frog can live in the water and on land", "green", "croaks"),
    "duck": ("near a quiet pond", "bread", "A duck has oily feathers that keep it dry", "friendly", "quacks"),
    "squirrel": ("in a nest high up in a pine tree", "acorns", "A squirrel hides nuts in the ground for the winter", "busy", "chatters"),
    "hedgehog": ("under a pile of dry leaves", "apples", "A hedgehog rolls into a ball when it is afraid", "shy", "snuffles"),
    "turtle": ("by a slow river", "lettuce", "A turtle carries its shell wherever it goes", "slow", "hisses"),
    "cat": ("in a little blue house", "fish", "A cat can see very well in the dark", "soft", "meows"),
    "dog": ("on a farm near the road", "bones", "A dog can smell things that people cannot smell", "loyal", "barks"),
    "pig": ("on a muddy farm", "corn", "A pig rolls in the mud to stay cool", "clever", "grunts"),
    "goat": ("on a steep green hill", "grass", "A goat can climb on very steep rocks", "stubborn", "bleats"),
    "sheep": ("in a wide meadow", "grass", "A sheep has thick wool that keeps it warm", "gentle", "bleats"),
    "horse": ("in a red barn", "hay", "A horse can sleep while it is standing", "fast", "neighs"),
    "elephant": ("in a hot, dry land", "leaves", "An elephant drinks with its long trunk", "huge", "trumpets"),
    "monkey": ("in the tall trees of the jungle", "bananas", "A monkey uses its tail to hold on to branches", "playful", "chatters"),
    "penguin": ("on a cold white shore", "fish", "A penguin cannot fly, but it can swim very fast", "funny", "honks"),
    "lion": ("on a wide yellow plain", "meat", "A lion sleeps for most of the day", "brave", "roars"),
    "beaver": ("in a house of sticks on the river", "bark", "A beaver builds dams out of wood and mud", "busy", "grunts"),
    "crow": ("at the top of a tall tower", "seeds", "A crow can solve hard puzzles", "clever", "caws"),
    "bee": ("in a golden hive", "nectar", "A bee makes honey from the nectar of flowers", "busy", "buzzes"),
    "deer": ("in the quiet forest", "leaves", "A deer can run fast and jump over high bushes", "gentle", "grunts"),
    "mole": ("in a long tunnel under the garden", "worms", "A mole digs long tunnels with its front paws", "quiet", "squeaks"),
    "otter": ("in a cool river", "fish", "An otter holds its food on its belly when it eats", "playful", "chirps"),
}
# Animals that make good heroes and good small guests in distress.
HEROES = [a for a in ANIMALS if a not in ("bee", "elephant", "lion", "deer", "cat", "dog")]
SMALL = ["bird", "kitten", "puppy", "duckling", "butterfly", "lamb", "rabbit", "squirrel", "mouse", "hedgehog", "turtle", "fawn"]
GROWN = {"duckling": "duck", "kitten": "cat", "puppy": "dog", "lamb": "sheep", "fawn": "deer", "foal": "horse", "piglet": "pig", "calf": "cow", "chick": "hen", "cub": "bear"}

# place: (where, toward, hiding spots, things to see)
PLACES = {
    "forest": ("in the forest", "to the forest", ["under a pile of leaves", "behind a mossy log", "at the foot of an old oak tree", "in a hollow tree", "between two big roots"], ["tall trees", "red mushrooms", "soft green moss", "tiny blue flowers", "old pine cones"]),
    "park": ("in the park", "to the park", ["under a wooden bench", "behind the swings", "next to the fountain", "in the sand box", "under a bush"], ["green grass", "a shiny fountain", "many children", "colorful kites", "yellow flowers"]),
    "beach": ("at the beach", "to the beach", ["behind a big rock", "under a wet towel", "in a pile of seaweed", "half buried in the sand", "inside an old boat"], ["white shells", "small crabs", "blue waves", "smooth stones", "hungry seagulls"]),
    "garden": ("in the garden", "to the garden", ["under the rose bush", "behind the watering can", "among the tomatoes", "next to the gate", "under a flower pot"], ["ripe tomatoes", "busy bees", "sweet roses", "tall sunflowers", "a row of beans"]),
    "farm": ("on the farm", "to the farm", ["behind the hay", "under the old tractor", "in the chicken house", "next to the well", "beside the barn door"], ["fat hens", "brown cows", "golden hay", "a red barn", "muddy pigs"]),
    "market": ("at the market", "to the market", ["under a table", "behind a basket of apples", "next to the bread stand", "between two boxes", "beside the flower cart"], ["fresh bread", "shiny apples", "big cheeses", "bright scarves", "loud sellers"]),
    "river": ("by the river", "to the river", ["under the bridge", "behind a gray rock", "in the tall grass", "among the reeds", "on a small island"], ["silver fish", "clear water", "green reeds", "round stones", "a little boat"]),
    "hill": ("on the hill", "to the hill", ["behind a stone wall", "in the tall grass", "under a lonely tree", "next to a big rock", "beside the path"], ["soft clouds", "wild flowers", "the whole village", "small sheep", "a long road"]),
    "meadow": ("in the meadow", "to the meadow", ["in the tall grass", "under a daisy", "behind a fence", "next to a stream", "beside a gray stone"], ["white daisies", "bright butterflies", "sleepy cows", "green hills", "buzzing bees"]),
    "library": ("in the library", "to the library", ["between two thick books", "under a round table", "behind a tall shelf", "on a window seat", "beside a lamp"], ["old books", "quiet readers", "big maps", "long shelves", "a round window"]),
    "barn": ("in the barn", "to the barn", ["under the hay", "behind an old wagon", "on a high beam", "beside the ladder", "in a wooden bucket"], ["sleepy horses", "dusty tools", "old ropes", "a tall ladder", "piles of hay"]),
    "school yard": ("in the school yard", "to the school yard", ["under the slide", "behind the door", "next to the fence", "on a bench", "near the big tree"], ["happy children", "a tall slide", "chalk pictures", "a long rope", "a round clock"]),
}
OUTDOORS = ["forest", "park", "beach", "garden", "farm", "river", "hill", "meadow"]

COLORS = "red blue green yellow orange purple white brown pink golden silver gray".split()
TOYS = "ball kite doll drum whistle robot".split() + ["toy boat", "teddy bear", "toy car", "paint box", "music box", "wooden horse", "toy plane", "puppet", "toy train"]
SMALL_THINGS = "ring button key hat scarf ribbon coin bell shell spoon map mitten flute lantern necklace book basket cup feather marble".split()
FOODS = ["bread", "soup", "cake", "apple pie", "pancakes", "cookies", "rice", "cheese", "porridge", "noodles", "salad", "berry jam"]
FRUITS = "apple pear plum peach banana orange lemon cherry melon fig".split()
CHILD_ADJ = "little small young kind curious cheerful shy brave clever quiet gentle lively".split()
TRAITS = ["kind", "brave", "curious", "clever", "patient", "helpful", "friendly", "honest", "careful", "cheerful"]
JOBS = ["baker", "farmer", "teacher", "doctor", "sailor", "painter", "carpenter", "gardener", "fisherman", "tailor", "shepherd", "miller", "postman", "cook", "singer"]
CITIES = ["Oakville", "Rivertown", "Greenhill", "Sandport", "Maple Bay", "Stonebridge", "Lakeside", "Windmere", "Pinewood", "Harbor Point", "Silverton", "Millbrook"]
HOBBIES = ["reading", "painting", "swimming", "singing", "dancing", "cooking", "fishing", "running", "drawing", "gardening", "climbing", "baking", "chess", "music"]
NUMBERS = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve", "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen", "twenty"]
DAYS = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"]
SEASONS = {"spring": "flowers begin to grow", "summer": "the days are long and warm", "autumn": "the leaves turn red and yellow", "winter": "the nights are long and cold"}
OPPOSITES = [("big", "small"), ("hot", "cold"), ("fast", "slow"), ("day", "night"), ("happy", "sad"), ("wet", "dry"), ("old", "young"), ("up", "down"), ("light", "dark"), ("loud", "quiet"), ("hard", "soft"), ("full", "empty"), ("open", "closed"), ("high", "low"), ("early", "late"), ("clean", "dirty"), ("near", "far"), ("strong", "weak")]
COLOR_OF = [("the sky on a clear day", "blue"), ("grass", "green"), ("snow", "white"), ("a banana", "yellow"), ("a ripe tomato", "red"), ("a carrot", "orange"), ("coal", "black"), ("a lemon", "yellow"), ("milk", "white"), ("a leaf in summer", "green"), ("chocolate", "brown"), ("an elephant", "gray")]
UNKNOWN = ["quantum physics", "the stock market", "the history of Rome", "politics", "computers", "the moon landing", "cars", "medicine", "law", "chemistry", "football", "space travel", "the French language", "volcanoes", "philosophy", "mathematics", "rockets", "dinosaurs", "the ocean floor", "electricity"]

WEATHER = {
    "sunny": ["The sun was [shining|bright|warm] and the sky was [blue|clear].", "It was a [warm|bright|sunny|lovely] [morning|day].", "The [birds|larks] were singing and the air was [warm|fresh|sweet]."],
    "windy": ["It was a [windy|blustery] [morning|day], and the [leaves|clouds] flew by.", "A [strong|cool] wind was blowing [through the trees|over the hills|from the sea]."],
    "cloudy": ["The sky was [gray|cloudy], but it did not rain.", "It was a [cool|quiet|gray] [morning|day] with many clouds."],
    "autumn": ["It was autumn, and the leaves were [red and gold|falling|orange and brown].", "The autumn air was [cool|crisp], and the [paths were|ground was] covered with leaves."],
}

# --------------------------------------------------------------------------
# Stories


class Actor:
    def __init__(self, name, kind, he, human):
        self.name, self.kind, self.he, self.human = name, kind, he, human


PRONOUNS = {"he": ("he", "him", "his", "himself"), "she": ("she", "her", "her", "herself")}


def invented_name(rng):
    name = rng.choice(ONSETS) + rng.choice(RIMES)
    tail = rng.choice(TAILS)
    return name + tail if len(name) < 5 else name


def person(rng, he=None):
    he = he or rng.choice(["he", "she"])
    # Invented names teach the model to copy a name instead of recalling one.
    name = invented_name(rng) if rng.random() < 0.15 else rng.choice(BOYS if he == "he" else GIRLS)
    return Actor(name, "boy" if he == "he" else "girl", he, True)


def animal(rng, kind=None, he=None):
    he = he or rng.choice(["he", "she"])
    name = invented_name(rng) if rng.random() < 0.15 else rng.choice(PETS)
    return Actor(name, kind or rng.choice(HEROES), he, False)


class Story:
    """Context and text of one story: calling it appends a rendered template."""

    def __init__(self, rng, hero=None):
        self.rng = rng
        self.ctx = {}
        self.out = []
        r = rng
        self.hero = hero or (person(r) if r.random() < 0.6 else animal(r))
        # The friend has the other pronoun, so that "he" and "she" stay clear.
        other = "she" if self.hero.he == "he" else "he"
        while True:
            if r.random() < (0.75 if self.hero.human else 0.1):
                self.friend = person(r, other)
            else:
                self.friend = animal(r, he=other)
            if self.friend.name != self.hero.name and self.friend.kind != self.hero.kind:
                break
        self.actor("", self.hero)
        self.actor("f", self.friend)
        place = r.choice(OUTDOORS)
        self.place(place)
        self.set(
            color=r.choice(COLORS), toy=r.choice(TOYS), thing=r.choice(SMALL_THINGS),
            food=r.choice(FOODS), fruit=r.choice(FRUITS), trait=r.choice(TRAITS),
            small=r.choice([s for s in SMALL if s != self.hero.kind and s != self.friend.kind]),
            parent=r.choice(["mother", "father", "grandmother", "grandfather"]),
            adj=r.choice(CHILD_ADJ), job=r.choice(JOBS), city=r.choice(CITIES),
            n=r.choice(NUMBERS[2:8]), num=r.choice(NUMBERS[3:13]),
        )
        self.ctx["p.he"] = "she" if "mother" in self.ctx["parent"] else "he"
        self.ctx["p.him"] = "her" if "mother" in self.ctx["parent"] else "him"
        self.ctx["p.He"] = self.ctx["p.he"].capitalize()

    def set(self, **values):
        self.ctx.update(values)

    def actor(self, prefix, a):
        he, him, his, himself = PRONOUNS[a.he]
        dot = prefix + "." if prefix else ""
        self.ctx[prefix or "h"] = a.name
        self.ctx[dot + "kind"] = a.kind
        for key, word in (("he", he), ("him", him), ("his", his), ("self", himself)):
            self.ctx[dot + key] = word
            self.ctx[dot + key.capitalize()] = word.capitalize()

    def place(self, place):
        where, to, spots, sights = PLACES[place]
        spots = self.rng.sample(spots, 3)
        sights = self.rng.sample(sights, 2)
        self.set(place=place, where=where, to=to, spot=spots[0], spot2=spots[1], spot3=spots[2], sight=sights[0], sight2=sights[1])

    def __call__(self, *templates):
        for t in templates:
            text = tidy(render(parse(t), self.ctx, self.rng))
            if text:
                self.out.append(text)

    def maybe(self, p, *templates):
        if self.rng.random() < p:
            self(*templates)

    def one(self, *templates):
        self(first_most(self.rng, templates))

    def para(self):
        if self.out and self.out[-1] != "\n\n" and self.rng.random() < 0.6:
            self.out.append("\n\n")

    def say(self, who, line, pronoun=None, tag=None):
        """A line of speech with one of several placements of its tag."""
        line = tidy(render(parse(line), self.ctx, self.rng))
        who = render(parse(who), self.ctx, self.rng)
        verb = tag or {"?": "asked", "!": self.rng.choice(["said", "cried", "called"])}.get(line[-1], "said")
        if verb == "asked" and line[-1] != "?":
            verb = "said"
        start = line[:-1] + "," if line[-1] == "." else line
        form = self.rng.random()
        if form < 0.45:
            text = f'"{start}" {verb} {who}.'
        elif form < 0.75:
            text = f'{who[:1].upper() + who[1:]} {verb}, "{line}"'
        elif pronoun:
            text = f'"{start}" {pronoun} {verb}.'
        else:
            text = f'"{start}" {who} {verb}.'
        self.out.append(text)

    def text(self):
        return re.sub(r" *\n\n *", "\n\n", " ".join(self.out)).strip()

    # Parts that many plots share ------------------------------------------

    def home(self):
        if self.hero.human:
            return self.rng.choice(["in a [small|quiet|little] village [near|by] the [sea|forest|river|hills]", "in a [small|white|yellow|red|cozy] house [near the forest|by the river|at the edge of town|on a hill]", "in the town of {city}", "on a [small|big|quiet] farm"])
        return ANIMALS[self.hero.kind][0]

    def open(self):
        r = self.rng
        self.ctx["home"] = self.home()
        k = r.random()
        if k < 0.5:
            self("[Once upon a time|Long ago|Once|Many years ago|A long time ago][, there was|, there lived] a_ {adj} {kind} named {h}.")
            self.one("{He} lived {home}.", "{h} lived {home}.", "{He} lived {home} and [was happy there|knew every path there|had many friends].", "{He} lived {home} with {his} {parent}.")
        elif k < 0.6:
            self("[Once upon a time|Long ago], {home}, there lived a_ {adj} {kind} named {h}.")
        elif k < 0.65:
            self("{home}[,| there was once a house, and in it] lived a_ {adj} {kind} named {h}." if self.hero.human and "house" not in self.ctx["home"] else "{home} lived a_ {adj} {kind} named {h}.")
        elif k < 0.68:
            self("This is the story of {h}, a_ {adj} {kind}.", "{h} lived {home}.")
        elif k < 0.75:
            self("{h} was a_ {adj} {kind} who lived {home}.")
        elif k < 0.83:
            self("A_ {adj} {kind} named {h} lived {home}.")
        elif k < 0.91:
            self("There was once a_ {adj} {kind} [called|named] {h}, who lived {home}.")
        else:
            self("The {adj} {kind} {h} lived {home}.")
        self.maybe(0.5, "[{He}|{h}] was [very|always] {trait} and [loved|liked] to [play|sing|explore|help others|tell jokes|look at the stars|ask questions].", )
        self.ctx["who"] = "" if self.friend.human else "[|, a_ {f.kind}]"
        self.maybe(0.25, "{h} had a [good|best|dear] friend named {f}{who}.")

    def day(self):
        self.para()
        w = self.rng.choice(sorted(WEATHER))
        self.one("One [day|morning|afternoon], {h} went {to}.", "One [bright|fine|cool|quiet] [day|morning|afternoon], {h} went {to} [with {f}|alone|to play].", "One [day|morning], {h} woke up [early|late] and [wanted to go|went] {to}.")
        self.maybe(0.5, self.rng.choice(WEATHER[w]))
        self.maybe(0.4, "{He} saw {sight} and {sight2}.")

    def close(self):
        # A friend who did not take part in the story has no place in its end.
        met = any(self.ctx["f"] in part for part in self.out)
        k = self.rng.uniform(0 if met else 0.25, 1)
        self.para()
        if k < 0.25:
            self("From that day on, {h} and {f} [were the best of friends|always helped each other|played together every day|met {where} every week].")
        elif k < 0.5:
            self("{h} [went home|walked home] [with a smile|with a happy heart|singing a song|tired but happy].", "[That night|In the evening], {he} [slept very well|dreamed of the {place}|told {his} {parent} the whole story].")
        elif k < 0.65:
            self("{h} was [very happy|proud|glad], and {he} never forgot that day.")
        elif k < 0.8:
            self("And [so|from then on], {h} [always remembered what had happened {where}|was never afraid to ask for help|told the story to all {his} friends].")
        else:
            self.maybe(0.7 if met else 0, "They [|all ][laughed|smiled] and ate {food} together.")
            self("It was [a wonderful|the best|a very happy] day.")
        self.maybe(0.2, "The end.")

    def lesson(self, moral):
        self.maybe(0.7, "{h} [learned|had learned|understood] that " + moral + ".")


def plot_lost(s):
    r = s.rng
    item = r.choice(["toy", "thing"])
    s.set(it="{color} {%s}" % item, word="{%s}" % item)
    s.open()
    s("{His} favorite thing was a_ {it}[| from {his} {parent}|, and {he} took it everywhere|, because it was a gift from {his} {parent}].")
    s.day()
    s.one("When {he} [came home|wanted to go home|stopped to rest], the {word} was gone.", "Suddenly, {he} saw that the {word} was [gone|missing].", "But then {he} could not find the {word} anywhere.")
    s.one("{h} was [very sad|worried|upset] and [began to cry|did not know what to do|looked at the ground].", "{He} felt [sad|afraid|terrible].")
    s.say("{h}", "[Oh no! Where is my {word}?|I have lost my {it}!|Where can it be?|I must find my {word}.]", "{he}".format(he=s.ctx["he"]))
    s.para()
    s.one("{He} looked {spot}, but it was not there.", "First {he} looked {spot}. There was nothing but [dust|sand|an old leaf|a small bug].")
    s.maybe(0.7, "Then {he} looked {spot2}, but the {word} was not there [either|].")
    s.one("{f} came by and saw that {h} was [sad|crying|worried].", "Then {h} met {f}, {his} friend.", "{His} friend {f} heard {him} and came [quickly|at once].")
    s.say("{f}", "[What is wrong?|Why are you so sad?|What are you looking for?]", s.ctx["f.he"])
    s.say("{h}", "[I lost my {word}.|My {word} is gone.|I cannot find my {it}.]", s.ctx["he"])
    s.say("{f}", "[Do not worry. I will help you.|Let us look together.|We will find it together.|Where did you see it last?]", s.ctx["f.he"])
    s.para()
    s.one("They looked [everywhere|for a long time|here and there]. At last, {f} looked {spot3}, and there was the {it}!", "The two friends searched together. {f} found the {word} {spot3}.", "Together they looked {spot3}, and there it was, the {it}.")
    s.one("{h} [hugged|thanked] {f} and [laughed|jumped for joy|smiled].", "{h} was so happy that {he} [danced|jumped up and down|gave {f} a big hug].")
    s.lesson("[a good friend is worth more than any {word}|it is easier to look for something together|it is good to ask for help]")
    s.close()


def plot_share(s):
    s.set(word="{toy}")
    s.open()
    s.day()
    s.one("There {he} found a_ {color} {toy} {spot}.", "{He} took {his} new {color} {toy} with {him}.")
    s.one("{f} came and wanted to play with the {toy} too.", "Soon {f} came and saw the {toy}.")
    s.say("{f}", "[May I play with it?|Can I have a turn?|What a nice {toy}! Can I try it?]", s.ctx["f.he"])
    s.say("{h}", "[No, it is mine.|No! I found it first!|I do not want to share.]", s.ctx["he"])
    s.one("{f} was [sad|hurt] and [went away|sat down alone|walked away slowly].", "{f} did not say anything. {f.He} just [looked at the ground|walked away].")
    s.para()
    s.one("{h} played with the {toy}, but after a while it was [not fun|boring] to play alone.", "Now {h} had the {toy} all to {self}, but {he} felt [lonely|bad].")
    s.one("{He} thought about {f} and [felt sorry|knew that {he} had been unkind].", "{He} remembered that {f} had always shared with {him}.")
    s.one("So {he} [went to find|ran to] {f}.", "{He} [ran|walked] after {f}.")
    s.say("{h}", "[I am sorry. Let us play together.|I am sorry, {f}. You can have the first turn.|Please come back. We can share it.]", s.ctx["he"])
    s.one("{f} smiled, and they played with the {toy} until [the sun went down|it was time to go home|dinner].", "{f} was happy again. They took turns with the {toy} all [day|afternoon].")
    s.lesson("[sharing makes everything more fun|a {toy} is more fun with a friend|it is kind to share]")
    s.close()


FEARS = [
    ("the dark", "When the lamp was out, {he} saw strange shapes on the wall", "light a small candle and look at the shapes again", "The shapes were only a coat and a chair", "the dark was quiet and soft"),
    ("thunder", "When the storm came, {he} hid under the blanket", "count the seconds between the light and the sound", "The thunder moved farther and farther away", "thunder was only a loud noise"),
    ("deep water", "When the others swam, {he} stayed on the shore", "start where the water is low and hold my hand", "The water was cool, and it carried {him}", "the water could be a friend"),
    ("high places", "When the others climbed up, {he} stayed on the ground", "take one small step at a time and look up", "Step by step, {he} went higher and higher", "the view from the top was beautiful"),
    ("singing in front of others", "When it was {his} turn, no sound came out", "sing only to me and forget the others", "{He} sang softly at first, and then louder and louder", "{his} voice was clear and fine"),
    ("new places", "When they went somewhere new, {he} held on to the gate", "look for one thing that you already know", "{He} saw a_ {color} flower, just like the ones at home", "new places were not so strange"),
]


def plot_fear(s):
    fear, show, advice, turn, insight = s.rng.choice(FEARS)
    s.set(fear=fear, show=show, advice=advice, turn=turn, insight=insight)
    s.open()
    s.one("{h} was [brave|happy] most of the time, but {he} was afraid of {fear}.", "There was only one problem: {h} was afraid of {fear}.", "But {he} had a secret. {He} was afraid of {fear}.")
    s("{show}.")
    s.maybe(0.5, "[Some of the others laughed at {him}|{He} did not want anybody to know|{He} wished that {he} could be brave].")
    s.para()
    s.set(helper=s.rng.choice(["{his} {parent}", "{f}", "an old owl"]))
    s.one("One [evening|day], {helper} [sat down beside {him}|came to {him}|saw that {he} was afraid].")
    s.say("{helper}", "[Everybody is afraid of something.|It is all right to be afraid.|I was once afraid of {fear}, too.]")
    s.say("{h}", "[What can I do?|How can I be brave?|But what should I do?]", s.ctx["he"])
    s('"You can {advice}," was the answer.')
    s.para()
    s.one("The next time, {h} [took a deep breath|closed {his} eyes for a moment|thought of these words] and tried it.", "{h} was still afraid, but {he} wanted to try.")
    s("{turn}.")
    s.one("{h} [smiled|laughed]. {He} saw that {insight}.", "Now {he} knew that {insight}.")
    s.lesson("[being brave does not mean having no fear|even a small step is a good step|it helps to talk about a fear]")
    s.close()


TROUBLES = [
    ("had hurt its leg", "made a soft bandage from a leaf", "could walk again"),
    ("was stuck in a thorn bush", "carefully pushed the thorns aside", "was free"),
    ("had fallen into a deep hole", "put a long branch into the hole", "climbed out"),
    ("was cold and hungry", "gave it a warm blanket and some food", "felt much better"),
    ("was caught in an old net", "cut the net with a sharp stone", "was free"),
    ("could not find its home", "looked at every tree and every bush with it", "was home again"),
]


def plot_help(s):
    trouble, act, result = s.rng.choice(TROUBLES)
    s.set(trouble=trouble, act=act, result=result)
    s.open()
    s.day()
    s.one("On the way, {he} heard a [soft|small|strange] sound {spot}.", "Suddenly {he} heard a [small|weak] voice. It came from somewhere {where}.", "Then {he} heard somebody [crying|calling for help].")
    s.one("It was a_ [little|tiny|young] {small} that {trouble}.", "There {he} found a_ [little|tiny] {small} that {trouble}.")
    s.say("the {small}", "[Please help me!|Can you help me?|Oh, please help me.]", "it")
    s.say("{h}", "[Do not be afraid. I will help you.|Of course I will help you.|Stay calm, little {small}.]", s.ctx["he"])
    s.para()
    s.one("{h} {act}. Soon the {small} {result}.", "So {he} {act}. It took [a long time|a while], but then the {small} {result}.")
    s.say("the {small}", "[Thank you! I will never forget this.|You are very kind. Thank you.|Thank you, {h}! One day I will help you, too.]", "it")
    s.para()
    k = s.rng.random()
    if k < 0.5:
        s.one("A few days later, {h} [lost {his} way {where}|could not find the way home|dropped {his} {thing} and could not find it].")
        s("The {small} saw {him} and [came at once|remembered {him}].")
        s.say("the {small}", "[Now it is my turn to help.|You helped me, and now I will help you.|Follow me, {h}.]", "it")
        s("Together they soon found it {spot2}." if "dropped" in s.out[-3] else "The {small} showed {him} the way, and soon {he} was [home|safe].")
    else:
        s("[After that|From then on], the {small} came to visit {h} every [morning|day|week].", "They [played|sang|talked] together and shared {his} {food}.")
    s.lesson("[kindness always comes back|even a small friend can be a great help|helping others feels good]")
    s.close()


BUILDS = [("kite", "paper and string", "it fell to the ground", "The tail was too short", "flew high above the trees"), ("boat", "wood and cloth", "it began to sink", "There was a hole in the side", "sailed across the pond"), ("tree house", "boards and rope", "the floor broke", "The boards were too thin", "was strong enough for two"), ("snow fort", "snow and ice", "the wall fell down", "The snow was too dry", "stood until spring"), ("cart", "an old box and four wheels", "a wheel came off", "One nail was missing", "rolled down the hill"), ("bird house", "wood and nails", "the roof fell off", "The nails were too short", "soon had a family of birds in it"), ("sand castle", "sand and shells", "a wave washed it away", "It was too close to the sea", "stood tall in the sun"), ("bridge", "stones and branches", "it broke in the middle", "The branches were too weak", "carried them across the stream"), ("lantern", "paper and a candle", "the wind blew it out", "It had no door", "shone all night long")]


def plot_build(s):
    what, of, fail, cause, win = s.rng.choice(BUILDS)
    s.set(what=what, of=of, fail=fail, cause=cause, win=win)
    s.open()
    s.one("{h} wanted to build a {what}.", "More than anything, {he} wanted to have a {what}.", "One day, {he} had an idea. {He} wanted to make a {what}.")
    s.one("{He} took {of} and went to work.", "{He} found {of} and started [at once|the same day].", "With {of}, {he} began to work.")
    s.maybe(0.5, "{He} worked all [morning|day|afternoon].")
    s.one("But when the {what} was ready, {fail}.", "At last the {what} was ready, but then {fail}.")
    s.say("{h}", "[It does not work!|I will never finish it.|Why did it break?|I give up!]", s.ctx["he"])
    s.para()
    s.one("{f} came and looked at the {what}.", "{His} friend {f} had seen everything.")
    s.say("{f}", "[Do not give up. Let us see what went wrong.|Try again. I will help you.|Every builder makes mistakes.]", s.ctx["f.he"])
    s.one("They looked [closely|carefully]. {cause}.", "{cause}, and now they knew what to do.")
    s.one("Together they [worked|tried] again, [slowly and carefully|step by step|until the evening].", "{h} and {f} fixed it together.")
    s.one("This time, the {what} {win}.", "Now the {what} was [perfect|better than before]. It {win}.")
    s.say("{h}", "[We did it!|Look! It works!|Thank you, {f}!]", s.ctx["he"])
    s.lesson("[a mistake is a chance to learn|it is worth trying again|two heads are better than one]")
    s.close()


GUIDES = [("a small stream", "The stream led {him} down to the valley"), ("the brightest star", "The star stood right above {his} home"), ("the sound of a bell", "The bell rang louder and louder"), ("a line of white stones", "The stones shone in the light of the moon"), ("an old turtle", "The turtle was slow, but it knew every path"), ("the smell of fresh bread", "The smell grew stronger with every step"), ("a friendly firefly", "The firefly shone like a little lamp")]


def plot_way(s):
    guide, led = s.rng.choice(GUIDES)
    s.set(guide=guide, led=led)
    s.open()
    s.day()
    s.one("{He} [followed|ran after] a_ {color} butterfly and did not look at the path.", "{He} walked and walked[, farther than ever before| and forgot the time].", "{He} was looking for [berries|flowers|pretty stones] and went farther and farther.")
    s.one("When {he} [looked up|stopped], [nothing looked the same|{he} did not know where {he} was|it was getting dark].", "Soon {he} was lost.")
    s.say("{h}", "[Which way is home?|I am lost!|How will I find the way back?|Hello? Is anybody there?]", s.ctx["he"])
    s.maybe(0.6, "[Nobody answered|There was no answer]. {He} [felt cold|felt very small|began to worry].")
    s.para()
    s.one("{He} sat down and [thought|took a deep breath].", "But {h} did not [cry|give up].", "{He} remembered what {his} {parent} had said: stay calm and look around.")
    s("Then {he} [noticed|found] {guide}." if "sound" not in guide and "smell" not in guide else "Then {he} noticed {guide}.")
    s("{h} [followed it|decided to follow it]. {led}.")
    s.one("[After a while|At last|Before long], {he} saw [a light in the window|the roof of {his} home|the old gate].", "Step by step, {he} came closer to home.")
    s.one("{His} {parent} was waiting at the door and [hugged {him}|gave {him} a warm hug|was very glad to see {him}].")
    s.say("{his} {parent}", "[I was so worried about you!|There you are! I am so glad.|Welcome home, {h}.]", s.ctx["p.he"])
    s.lesson("[it is good to stay calm|one should always remember the way|home is the best place of all]")
    s.maybe(0.5, "[That night|In the evening], {he} ate warm {food} and [fell asleep|went to bed early].")


def plot_birthday(s):
    s.open()
    s.para()
    s.one("It was {h}'s birthday, but nobody said a word about it.", "On the morning of {his} birthday, {h} woke up and [smiled|jumped out of bed].")
    s.one("{He} went to {f}, but {f} was [busy|in a hurry].", "{He} asked {f} to play, but {f} had no time.")
    s.say("{f}", "[I am sorry, I must go.|Not now, {h}. I have so much to do.|Maybe later.]", s.ctx["f.he"])
    s.one("{h} was [sad|disappointed]. {He} thought that everybody had forgotten.", "{He} walked {to} alone and sat down {spot}.")
    s.para()
    s.one("In the evening, {he} went home slowly. The house was dark.", "When {he} came home, [it was very quiet|all the lights were off].")
    s.one("{He} opened the door, and [suddenly|then] there was light everywhere.", "Then the door opened, and {he} heard many voices.")
    s.say("everybody", "[Surprise!|Happy birthday, {h}!|Surprise! Happy birthday!]", None, "called")
    s.one("There was a big cake with {num} candles, and {f} gave {him} a_ {color} {toy}.", "All {his} friends were there. {f} had made a cake, and there was a_ {color} {toy} too.")
    s.say("{h}", "[I thought that you had forgotten!|Thank you, all of you!|This is the best day of my life.]", s.ctx["he"])
    s.say("{f}", "[How could we forget you?|We wanted to surprise you.|We worked on it all day.]", s.ctx["f.he"])
    s.close()


def plot_gift(s):
    made = s.rng.choice([("picture", "paints a picture of their house", "painted a picture of the house and the {sight}"), ("song", "", "made up a song about the {place}"), ("necklace", "", "put {num} shells on a string and made a necklace"), ("cake", "", "baked a small cake with {fruit} on top"), ("scarf", "", "knitted a warm {color} scarf"), ("garden", "", "planted {num} flowers under the window")])
    s.set(gift=made[0], made=made[2])
    s.open()
    s.one("Soon it would be the birthday of {his} {parent}, and {h} wanted to give {p.him} something special.", "{h} wanted to give {his} {parent} a present.")
    s.one("But {he} had only {n} coins.", "In {his} pocket, {he} had only {n} coins.")
    s.para()
    s.one("{He} went to the market and saw [shiny rings|soft gloves|a golden clock], but everything cost too much.", "At the shop, everything was too expensive.")
    s.say("{h}", "[What can I do now?|I do not have enough money.|There must be something that I can give.]", s.ctx["he"])
    s.one("On the way home, {he} met {f}.", "{He} told {f} about it.")
    s.say("{f}", "[A present does not have to be expensive.|Why do you not make something?|The best gifts are made by hand.]", s.ctx["f.he"])
    s.para()
    s.one("{h} thought about it all [night|evening]. Then {he} {made}.", "So {h} went home and {made}.")
    s.one("When {his} {parent} saw the {gift}, {p.he} [had tears of joy|smiled from ear to ear|was very happy]." if made[0] != "song" else "When {his} {parent} heard the song, {p.he} [had tears of joy|smiled from ear to ear|was very happy].")
    s.say("{his} {parent}", "[This is the best gift of all.|You made this for me? Thank you, {h}.|I will never forget this.]", s.ctx["p.he"])
    s.lesson("[a gift from the heart is worth more than gold|love is more important than money]")
    s.maybe(0.3, "The end.")


def plot_race(s):
    s.open()
    s.para()
    s.one("One day, there was a big race {where}.", "Every [summer|spring|year], there was a race {where}.")
    s.one("{h} and {f} both wanted to win.", "{f} was the fastest runner of all, but {h} wanted to try, too.")
    s.say("{f}", "[I will win this race.|Nobody is faster than I am.|You are too slow, {h}.]", s.ctx["f.he"])
    s.say("{h}", "[We will see.|I will do my best.|I only want to have fun.]", s.ctx["he"])
    s.one("The race began, and {f} ran ahead.", "They all started to run. {f} was soon far ahead.")
    s.para()
    if s.rng.random() < 0.5:
        s.one("But halfway, {f} fell over a [root|stone] and hurt {f.his} foot.", "Then {f} slipped and fell down.")
        s.one("{h} could have [won|run past], but {he} stopped and helped {f.him} up.", "{h} stopped at once.")
        s.say("{h}", "[Are you all right?|Take my hand.|Come, we will go together.]", s.ctx["he"])
        s.one("They walked to the end together. They came last, but everybody cheered.", "Side by side, they crossed the line. Everybody cheered for them.")
        s.lesson("[a friend is more important than a prize|it is better to be kind than to be first]")
    else:
        s.one("{f} was so sure of winning that {f.he} [took a nap|stopped to eat a_ {fruit}|sat down to rest].", "Because {f.he} was so far ahead, {f} lay down [under a tree|in the grass] and fell asleep.")
        s.one("{h} did not stop. Step by step, {he} went on.", "{h} was slow, but {he} kept going.")
        s.one("When {f} [woke up|looked up], {h} was already at the finish line.", "{h} reached the finish line first, and everybody cheered.")
        s.say("{f}", "[You won! I should not have been so proud.|Well done, {h}.|Next time I will not stop.]", s.ctx["f.he"])
        s.lesson("[slow and steady wins the race|it is good to keep going]")
    s.close()


def plot_seed(s):
    plant = s.rng.choice([("sunflower", "as tall as the house"), ("pumpkin", "as big as a wheel"), ("apple tree", "full of red apples"), ("rose", "the color of the evening sky"), ("bean plant", "higher than the roof"), ("strawberry", "sweet and red"), ("tomato plant", "full of round tomatoes")])
    s.set(plant=plant[0], big=plant[1])
    s.open()
    s.one("One spring day, {his} {parent} gave {him} a small seed.", "One day, {h} found a small seed {spot}.", "{h} bought a tiny seed at the market for {n} coins.")
    s.say("{h}", "[What will it become?|I will plant it in the garden.|Such a small seed!]", s.ctx["he"])
    s.one("{He} dug a little hole, put the seed in it, and gave it water.", "{He} planted it in the garden where the sun was warm.")
    s.para()
    s.one("Every day, {h} went to look, but nothing happened.", "The next day, {he} looked at the ground, but there was nothing to see.")
    s.one("After a week, {he} wanted to [dig it up|give up].", "{He} [waited and waited|became impatient].")
    s.say("{his} {parent}", "[Be patient. Good things take time.|A seed works under the ground where we cannot see it.|Give it some water and some time.]", s.ctx["p.he"])
    s.one("So {h} [waited|gave it water every morning|sang to it every evening], [in the sun and in the rain|day after day].")
    s.para()
    s.one("Then, one morning, there was a tiny green leaf.", "At last, a small green leaf came out of the ground.")
    s.one("It grew and grew. By the end of the summer, there was a_ {plant}, {big}.", "By autumn, it had become a_ {plant}, {big}.")
    s.one("{h} showed it to {f}, and {f.he} could not believe {f.his} eyes.", "{h} shared it with everybody in the [village|neighborhood].")
    s.lesson("[good things take time|patience is a kind of magic]")
    s.maybe(0.3, "The end.")


def plot_truth(s):
    broke = s.rng.choice(["the blue vase", "the old clock", "{his} {parent}'s favorite cup", "the kitchen window", "the big mirror", "the flower pot"])
    s.set(broke=broke)
    s.open()
    s.para()
    s.one("One day, {h} played with {his} {toy} in the house, and {broke} broke.", "One rainy day, {h} ran through the house and broke {broke}.")
    s.one("{He} looked at the pieces and [felt sick|was afraid|did not know what to do].", "It lay on the floor in many pieces.")
    s.say("{h}", "[Nobody saw me.|I could hide the pieces.|What will they say?]", s.ctx["he"], "thought")
    s.one("{He} hid the pieces [under the bed|behind the door|in a box].", "So {he} put the pieces in a bag and said nothing.")
    s.para()
    s.one("At dinner, {h} could not eat. {His} stomach hurt.", "That night, {he} could not sleep.", "All day long, {he} could think of nothing else.")
    s.one("At last, {he} went to {his} {parent}.", "In the morning, {he} ran to {his} {parent} with tears in {his} eyes.")
    s.say("{h}", "[I have to tell you something. I broke it.|It was me. I am so sorry.|I broke it and I hid the pieces. I am sorry.]", s.ctx["he"])
    s.one("{His} {parent} was quiet for a moment and then [smiled|took {his} hand].")
    s.say("{his} {parent}", "[Thank you for telling me the truth.|Things can break, but your honesty is worth more.|I am glad that you told me.]", s.ctx["p.he"])
    s.one("Together they glued the pieces, and {h} felt [light|much better|happy] again.", "They cleaned up together, and {h} felt as light as a feather.")
    s.lesson("[the truth is always the best way|it takes courage to be honest]")
    s.maybe(0.4, "From that day on, {he} always told the truth.")


def plot_rain(s):
    game = s.rng.choice([("a ship", "The table was the ship, and the carpet was the sea"), ("a castle", "Two chairs and a blanket became a castle"), ("a train", "They put all the chairs in a row and sold tickets"), ("a zoo", "Every toy became a wild animal"), ("a theater", "A blanket was the curtain, and the dolls were the actors"), ("a shop", "They sold buttons and paid with dry beans")])
    s.set(game=game[0], how=game[1])
    s.open()
    s.para()
    s.one("One day, it rained and rained.", "It had been raining for {n} days.", "Dark clouds came, and soon it was raining hard.")
    s.one("{h} sat at the window and [was bored|watched the drops].", "{h} could not go {to}, and {he} was [sad|bored].")
    s.say("{h}", "[There is nothing to do!|When will it stop raining?|I want to go out and play.]", s.ctx["he"])
    s.one("Then there was a knock at the door. It was {f}, wet from head to toe.", "{f} came to visit with a big umbrella.")
    s.say("{f}", "[Why do we not make {game}?|I have an idea! Let us build {game}.|We do not need the sun to have fun.]", s.ctx["f.he"])
    s.para()
    s("{how}.")
    s.one("{h} was the captain, and {f} was the guest.", "They laughed so much that they forgot the rain.") if game[0] in ("a ship", "a train") else s.one("They laughed so much that they forgot the rain.", "They played until the evening.")
    s.one("When they looked out of the window, the rain had stopped, and there was a rainbow.", "After a while, the sun came out, but they did not even notice.")
    s.say("{h}", "[What a wonderful rainy day!|I hope that it rains again tomorrow!|That was so much fun.]", s.ctx["he"])
    s.lesson("[every day can be a good day|a little imagination can change everything]")
    s.maybe(0.3, "The end.")


def plot_market(s):
    s.open()
    s.para()
    s.one("One day, {his} {parent} sent {him} to the market to buy {food}.", "{h} went to the market with {num} coins to buy {food}.")
    s.one("On the way, {he} met an old {job} who had not eaten for two days.", "At the gate, there was a poor old {job} with an empty bag.")
    s.say("the old {job}", "[Do you have something to eat?|Can you help me? I am so hungry.|Please, I have nothing left.]")
    s.one("{h} looked at {his} coins and thought for a moment. Then {he} [gave them all away|bought some bread for the {job}].", "{h} had a good heart, so {he} gave the {job} the {food}.")
    s.say("the old {job}", "[You are very kind. Take this old {thing}. It will bring you luck.|Thank you. Please take this {thing}.|I cannot pay you, but I can give you this {thing}.]")
    s.para()
    s.one("{h} came home with nothing but the {thing}.", "At home, {h} told {his} {parent} what had happened and showed the {thing}.")
    s.one("{His} {parent} was not angry.", "{His} {parent} listened and nodded.")
    s.say("{his} {parent}", "[You did the right thing.|I am proud of you, {h}.|A kind heart is better than a full table.]", s.ctx["p.he"])
    s.one("The next morning, there was a big basket at the door, full of {food} and fruit. Nobody knew where it came from[|, but {h} looked at the {thing} and smiled].", "That evening, {f} came by with a pot of soup, and there was enough for everybody.")
    s.lesson("[what you give comes back to you|it is good to help those who have less]")
    s.maybe(0.3, "The end.")


def plot_newfriend(s):
    s.open()
    s.para()
    s.one("One day, somebody new came to [live nearby|the neighborhood]. {f.His} name was {f}.", "One day, a new family moved in next door. They had a child named {f}.")
    s.one("{f} was very shy and [did not talk to anybody|always stood alone|looked at {f.his} feet].")
    s.one("The others played [games|with a ball], but nobody asked {f.him} to join.", "Nobody knew what to say to {f.him}.")
    s.one("{h} remembered how it feels to be alone.", "{h} saw that {f} was lonely.")
    s.para()
    s.one("So {he} took {his} {color} {toy} and went over to {f}.", "The next day, {h} sat down next to {f} and gave {f.him} half of {his} {fruit}.")
    s.say("{h}", "[Hello! My name is {h}. Do you want to play?|Hi! I am {h}. What is your name?|Would you like to come {to} with me?]", s.ctx["he"])
    s.one("At first, {f} said nothing. Then {f.he} [smiled|nodded].", "{f} looked up and smiled for the first time.")
    s.say("{f}", "[I would like that very much.|Yes, please.|You are the first one to talk to me.]", s.ctx["f.he"])
    s.one("They went {to} and looked at {sight} and {sight2}.", "{f} knew many [funny stories|good games], and {h} laughed [all day|until {his} belly hurt].")
    s.lesson("[one kind word can start a friendship|a friend may be waiting where you do not expect one]")
    s.close()


NOISES = [("Tap, tap, tap", "a branch that knocked on the window"), ("Scratch, scratch", "a little kitten at the door"), ("Whoo, whoo", "an old owl on the roof"), ("Drip, drop, drip", "water that fell into a bucket"), ("Crunch, crunch", "a hedgehog that was eating an apple"), ("Squeak, squeak", "a mouse that had found the cheese"), ("Bump, bump", "an open gate in the wind"), ("Rustle, rustle", "a squirrel in the dry leaves")]


def plot_noise(s):
    noise, source = s.rng.choice([n for n in NOISES if s.hero.kind not in n[1]])
    s.set(noise=noise, source=source)
    s.open()
    s.para()
    s.one("One night, {h} woke up because of a strange noise.", "It was late at night when {h} heard a noise.")
    s.one('"{noise}," it went.', '{noise}! There it was again.')
    s.say("{h}", "[Who is there?|What is that?|Is it a monster?]", s.ctx["he"], "whispered")
    s.one("Nobody answered. {His} heart beat fast.", "{He} pulled the blanket over {his} head.", "There was no answer, only the wind.")
    s.para()
    s.one("{h} took a small lamp and [went down the stairs|opened the door|walked through the dark].", "But {h} was more curious than afraid, so {he} took a lamp and went to look.")
    s.one("Step by step, {he} came closer to the sound.", "The noise became louder and louder.")
    s.one("Then {he} saw what it was. It was only {source}!", "And what did {he} see? It was {source}!")
    s.one("{h} [laughed|had to laugh] and went back to bed.", "{h} laughed out loud. What a funny monster!")
    s.one("In the morning, {he} told {f} about it, and they laughed together.", "The next day, {he} told {his} {parent} the story.")
    s.lesson("[most things are not as scary as they sound|it is better to look than to be afraid]")
    s.maybe(0.3, "The end.")


def plot_map(s):
    inside = s.rng.choice(["{num} golden coins", "an old book full of stories", "a_ {color} {thing} and a letter", "a box of colorful stones", "seeds of every kind", "a mirror and a note"])
    s.set(inside=inside)
    s.open()
    s.para()
    s.one("One day, {h} found an old map in [a bottle|a dusty book|a wooden box].", "{h} was cleaning the attic when {he} found an old map.")
    s.one("There was a big red cross on it.", "On the map, there was a [path|line] that led {to}.")
    s.say("{h}", "[It is a treasure map!|We must follow it!|Look at this, {f}!]", s.ctx["he"])
    s.one("{He} called {f}, and they went {to} together.", "{h} and {f} packed some {food} and went {to}.")
    s.para()
    s.one("First they looked {spot}, but they found only [stones|sand|an old shoe].", "They walked past {sight} and counted {num} steps.")
    s.one("Then they dug a hole {spot2}, and {f} hit something hard.", "At last, {f} saw something {spot2}.")
    s.one("It was a small chest. Inside, there was {inside}." if not inside.startswith(("seeds", "{num}")) else "It was a small chest. Inside, there were {inside}.")
    s.say("{f}", "[What shall we do with it?|We are rich!|I have never seen anything like this.]", s.ctx["f.he"])
    s.say("{h}", "[Let us share it with everybody.|We will share it.|The best part was finding it with you.]", s.ctx["he"])
    s.lesson("[the real treasure is a good friend|a treasure is best when it is shared]")
    s.close()


SKILLS = [("ride a bike", "fell off", "rode all the way down the street"), ("swim", "swallowed some water", "swam across the whole pond"), ("whistle", "blew only air", "whistled a whole song"), ("play the drum", "lost the beat", "played in front of the whole village"), ("skate", "fell on the ice", "made a big circle on the ice"), ("tie a knot", "made a terrible mess", "tied the best knot of all"), ("read", "mixed up the letters", "read a whole page aloud"), ("dance", "stepped on {his} own feet", "danced until the music stopped"), ("climb a rope", "slid down again", "touched the top of the rope"), ("juggle", "dropped the apples", "kept three apples in the air"), ("bake bread", "burned it", "baked a soft, golden bread")]


def plot_skill(s):
    what, fail, win = s.rng.choice(SKILLS)
    s.set(what=what, fail=fail, win=win)
    s.open()
    s.one("{h} wanted to learn how to {what}.", "All {his} friends could {what}, but {h} could not.")
    s.one("The first time {he} tried, {he} {fail}.", "{He} tried once, but {he} {fail}.")
    s.maybe(0.7, "{He} tried again, and again {he} {fail}.")
    s.say("{h}", "[I will never learn it!|It is too hard.|I am not good at this.]", s.ctx["he"])
    s.para()
    s.one("{f} [heard it|saw it] and sat down beside {him}.", "{His} {parent} smiled at {him}.")
    s.say("{f}" if s.out[-1].startswith(s.ctx["f"]) else "{his} {parent}", "[I needed a whole year to learn it.|Nobody can do it on the first day.|Practice a little every day.]")
    s.one("So {h} practiced every [day|morning|evening], even when it was [cold|hard|raining].", "Day after day, {h} practiced {where}.")
    s.one("Slowly, it became easier.", "After {n} weeks, something changed.")
    s.para()
    s.one("Then, one [morning|day], {h} {win}!", "And one day, in front of {f}, {h} {win}.")
    s.say("{h}", "[I can do it!|Look at me!|I did it!]", s.ctx["he"])
    s.lesson("[practice makes perfect|you can learn anything if you keep trying]")
    s.close()


def plot_soup(s):
    s.open()
    s.para()
    s("It was a [cold|long|hard] winter, and there was little [to eat|food].")
    s.one("{h} wanted to cook a soup, but {he} had only one [onion|potato|carrot].", "{h} had a big pot, but nothing to put in it except one [onion|potato].")
    s.one("{He} put the pot on the fire and [began to stir|began to sing].", "Still, {he} put the pot outside and made a fire.")
    s.one("{f} came by and smelled the soup.", "The first one to come was {f}.")
    s.say("{f}", "[What are you cooking?|That smells good.|May I have some?]", s.ctx["f.he"])
    s.say("{h}", "[A soup for everybody. But it needs something more.|It is almost good. Do you have some salt?|You may, but it would be better with a carrot.]", s.ctx["he"])
    s.para()
    s.one("{f} ran home and brought [some carrots|a bag of beans|a little salt].")
    s.one("Then a neighbor brought [cabbage|mushrooms|corn], and another one brought bread.", "One after the other, the neighbors came, and each of them brought something.")
    s.one("In the end, there was enough soup for everybody.", "Soon the pot was full, and the soup was the best they had ever eaten.")
    s.one("They sat around the fire, ate, and told stories [until late at night|until the stars came out].")
    s.lesson("[a little from everybody becomes a lot|together we have enough]")
    s.maybe(0.3, "The end.")


def plot_baby(s):
    baby = s.rng.choice([b for b in GROWN if GROWN[b] not in (s.hero.kind, s.friend.kind)])
    s.set(baby=baby, grown=GROWN[baby])
    s.open()
    s.day()
    s.one("There {he} saw a little {baby} that was all alone.", "A little {baby} was sitting {spot}, all alone.")
    s.say("the {baby}", "[I cannot find my mother.|Have you seen my mother?|I want to go home!]", "it")
    s.say("{h}", "[Do not cry. We will find her.|Come with me. I will help you.|What does she look like?]", s.ctx["he"])
    s.para()
    s.one("They looked {spot2}, but there was only a_ [old frog|sleepy cat|busy bee].", "First they went {to} and looked {spot2}, but nobody was there.")
    s.maybe(0.7, "They asked {f}, but {f} had not seen her.", )
    s.one("Then {h} climbed on a [rock|wall|tree] and looked around.", "Then {h} had an idea. {He} called as loudly as {he} could.")
    s.one("Far away, there was a big {grown} that was looking for somebody.", "A moment later, a_ {grown} came running.")
    s.say("the {baby}", "[Mother! Here I am!|That is my mother!|Mother, I missed you!]", "it")
    s.one("The {grown} [was so happy that she cried|held her {baby} close|thanked {h} again and again].")
    s.say("the {grown}", "[Thank you for bringing my little one back.|You have a good heart, {h}.|How can I ever thank you?]")
    s.lesson("[it feels good to help someone find the way home|nobody should be alone]")
    s.close()


def plot_wish(s):
    wish, wrong = s.rng.choice([("all the cake in the world", "there was cake on the bed, cake on the chairs, and cake in the shoes"), ("that it would never be night", "the sun did not go down, and nobody could sleep"), ("to be as big as a house", "{he} did not fit through the door"), ("to be able to fly", "the wind carried {him} higher and higher, and {he} could not get down"), ("that everything would be {color}", "the grass, the soup, and even {f} were {color}"), ("that it would snow every day", "the snow was higher than the door"), ("to be invisible", "nobody could see {him}, and nobody wanted to play with {him}")])
    s.set(wish=wish, wrong=wrong)
    s.open()
    s.day()
    s.set(magic=s.rng.choice(["frog", "fish", "fairy", "star", "beetle"]))
    s("{spot}, {he} found a [tiny|strange|golden] {magic}.")
    s.say("the {magic}", "[I can give you one wish.|You have one wish, {h}.|Make a wish, but think about it well.]", "it")
    s.one("{h} did not think for long. {He} wished for {wish}." if wish.startswith("all") else "{h} did not think for long. {He} wished {wish}.")
    s.one("The {magic} [nodded|smiled|shone], and the wish came true.")
    s.para()
    s.one("At first, {h} was [happy|delighted]. But soon {wrong}.", "The next morning, {wrong}.")
    s.say("{h}", "[This is not what I wanted!|What have I done?|I do not like this at all!]", s.ctx["he"])
    s.one("{He} ran back to the {magic}.", "{He} called the {magic} again.")
    s.say("{h}", "[Please take my wish back.|I am sorry. I want everything to be as it was.]", s.ctx["he"])
    s.one("The {magic} laughed, and everything was as before.", "The {magic} nodded, and in a moment everything was normal again.")
    s.lesson("[one should be careful with wishes|{he} already had everything that {he} needed]")
    s.close()


def plot_storm(s):
    s.set(sailor=s.rng.choice(["fisherman", "sailor"]))
    s.open()
    s.one("{His} {parent} was a keeper of the lighthouse and lit the lamp every evening.") if s.hero.human else s.one("Near {his} home stood an old lighthouse.")
    s.para()
    s.one("One night, a great storm came. The waves were as high as houses.", "One evening, the wind began to blow, and soon there was a terrible storm.")
    s.one("Suddenly, the lamp of the lighthouse went out.", "Then the light went out, and everything was dark.")
    s.say("{h}", "[The boats cannot find the way!|We must light the lamp again!|Somebody has to help the {sailor}s!]", s.ctx["he"])
    s.one("{He} ran up the stairs, all {num} of them.", "Without waiting, {he} ran through the rain to the tower.")
    s.one("The first match went out, and the second one too. But the third one burned.", "{His} hands were cold, but {he} did not stop until the lamp was burning.")
    s.para()
    s.one("Far out on the sea, an old {sailor} saw the light and turned the boat.", "The light shone over the dark water, and a small boat found its way.")
    s.one("In the morning, the {sailor} came to {h} and [shook {his} hand|bowed].")
    s.say("the {sailor}", "[You saved my life.|Your light showed me the way home.|Without you, I would be lost.]", "he")
    s.one("He gave {him} a_ {color} shell, and {h} kept it forever.", "{h} was very proud, and {f} wanted to hear the story again and again.")
    s.lesson("[even a small light can help in the dark|even the smallest one can do great things]")
    s.maybe(0.3, "The end.")


def plot_robot(s):
    s.set(bot=s.rng.choice(["Bolt", "Beep", "Rusty", "Zip", "Tin", "Gizmo", "Cog"]))
    s.open()
    s.para()
    s.one("One day, {h} found an old robot {spot}.", "In {his} {parent}'s workshop, there was an old robot that did not move.")
    s.one("It was covered with dust, and one of its arms was broken.", "Its lights were dark, and its wheels were rusty.")
    s.say("{h}", "[I will repair you.|Poor robot. Nobody takes care of you.|I wonder if it still works.]", s.ctx["he"])
    s.one("{He} cleaned it, put oil on its wheels, and gave it a new battery.", "{h} worked for {n} days. {He} found new screws and a new arm.")
    s.one("Suddenly, two [blue|green|yellow] lights began to shine.", "Then there was a soft sound, and the robot opened its eyes.")
    s.say("the robot", "[Hello. My name is {bot}.|Thank you. I am {bot}. How can I help you?|Where am I? I have slept for a long time.]", "it")
    s.para()
    s.one("{h} showed the robot the {place}. It had never seen {sight} before.", "The robot wanted to know everything, so {h} took it {to}.")
    s.say("the robot", "[What is that?|The world is beautiful.|I like it here.]", "it")
    s.one("From then on, the robot helped {h} every day, and in the evening they looked at the stars.", "The robot could [sing|count to a million|carry heavy things], and everybody liked it.")
    s.lesson("[old things can have a new life|it is worth taking care of things]")
    s.close()


def plot_quarrel(s):
    s.open()
    s.para()
    s.set(which=s.rng.choice(["who was faster", "what game to play", "who should have the last {fruit}", "whose turn it was", "the way to the {place}"]))
    s.one("{h} and {f} were good friends, but one day they had a fight about {which}.", "One day, {h} and {f} could not agree about {which}.")
    s.say("{h}", "[You never listen to me!|I do not want to play with you anymore!|You are wrong!]", s.ctx["he"])
    s.say("{f}", "[Then I will go home!|I do not want to play with you either!|No, you are wrong!]", s.ctx["f.he"])
    s.one("They turned around and walked away.", "{h} went left, and {f} went right.")
    s.para()
    s.one("{h} sat {spot} and [kicked a stone|looked at {sight}]. It was very quiet without {f}.", "The whole day, {h} felt [strange|unhappy]. Nothing was fun.")
    s.one("{He} could not even remember why they had been so angry.", "{He} thought of all the good days with {f}.")
    s.one("In the evening, {he} went to {f}'s house with a_ {fruit} in {his} hand.", "{He} got up and went to look for {f}. Halfway, {he} met {f.him}, because {f} was looking for {him}, too.")
    s.say("{h}", "[I am sorry.|I missed you. I am sorry.|Let us be friends again.]", s.ctx["he"])
    s.say("{f}", "[I am sorry, too.|I missed you, too.|I was wrong as well.]", s.ctx["f.he"])
    s.lesson("[it takes courage to say sorry|friends can fight and still be friends]")
    s.close()


def plot_tidy(s):
    s.open()
    s.one("{h} never wanted to clean {his} room.", "{His} room was always a mess. There were toys on the floor and socks on the lamp.")
    s.say("{his} {parent}", "[Please clean your room, {h}.|How can you find anything in here?|It is time to clean up.]", s.ctx["p.he"])
    s.say("{h}", "[I will do it tomorrow.|Later!|But I have no time.]", s.ctx["he"])
    s.para()
    s("One day, {f} wanted to go {to} with {him}.")
    s.one("But {h} could not find {his} [shoes|boots|{thing}].", "{h} looked for {his} [coat|shoes] everywhere, but there were too many things on the floor.")
    s.one("{He} looked under the bed, behind the {toy}, and on the shelf.", "{He} looked and looked, and the time went by.")
    s.one("When {he} was ready at last, it was too late. The sun was going down.", "At last, {f} had to go alone.")
    s.para()
    s.one("{h} was sad. Then {he} began to clean up.", "The next day, {h} cleaned the whole room.")
    s.one("{He} put the books on the shelf, the toys in a box, and the socks in a drawer.", "Under the bed, {he} even found the {color} {toy} that {he} had lost last year.")
    s.say("{his} {parent}", "[Well done! Now you can find everything.|What a nice room!|I am proud of you.]", s.ctx["p.he"])
    s.one("The next time {f} came, {h} was ready in a minute.", "Now {h} had time to play, and {he} and {f} went {to} together.")
    s.maybe(0.3, "The end.")


def plot_snow(s):
    s.open()
    s.para()
    s.one("One morning, everything was white. It had snowed all night.", "It was winter, and the first snow had come.")
    s.say("{h}", "[Snow! It is snowing!|Look at all the snow!|Come out and play, {f}!]", s.ctx["he"])
    s.one("{h} put on {his} {color} scarf and ran outside, where {f} was already waiting.", "{h} and {f} ran {to} and threw snowballs.")
    s.one("They made a big snowman with a carrot for a nose.", "Together they built a snowman with {n} buttons and an old hat.")
    s.say("{f}", "[He looks like your {parent}!|Let us give him a name.|He looks cold. He needs a scarf.]", s.ctx["f.he"])
    s.para()
    s.one("For {n} days, the snowman stood there and smiled.", "Every morning, {h} said hello to the snowman.")
    s.one("But then the sun came out, and the snowman became smaller and smaller.", "Then the days became warmer, and the snow began to melt.")
    s.one("{h} was sad when only the hat and the carrot were left.", "One morning, there was only a puddle with a carrot in it.")
    s.say("{his} {parent}", "[Do not be sad. He will come back next winter.|The water helps the flowers to grow.|Nothing is lost. Soon you will see.]")
    s.one("And where the snowman had been, the first flower of spring came out.", "A week later, a small {color} flower grew in that place, and {h} smiled.")
    s.maybe(0.3, "The end.")


def plot_night(s):
    s.open()
    s.para()
    s.one("One evening, {h} could not sleep.", "It was late, but {h} was not tired.")
    s.one("{He} counted [sheep|stars] up to {num}, but {he} was still awake.", "{He} turned to the left and to the right.")
    s.one("So {he} asked {his} {parent} for a story.", "{His} {parent} came and sat down on the bed.")
    s.say("{h}", "[Why do the stars shine?|Where does the moon go in the morning?|Do animals dream?|Who lights the stars?]", s.ctx["he"])
    s.say("{his} {parent}", "[Nobody knows for sure, but I will tell you a story.|That is a very good question.|Close your eyes, and I will tell you.]", s.ctx["p.he"])
    s.para()
    s.one("{p.He} told {him} about a_ {color} {small} that wanted to touch the moon.", "It was a story about a_ {small} that traveled over the sea on a_ {color} leaf.")
    s.one("The {small} climbed the highest hill, but the moon was still far away.", "Every night, the {small} went a little farther.")
    s.one("In the end, it found the moon in a quiet lake, and it was happy.", "At last, it saw the moon in the water and touched it gently.")
    s.one("When the story was over, {h} was already asleep.", "{h} smiled, closed {his} eyes, and was soon asleep.")
    s.maybe(0.5, "Outside, the stars shone over the {place}.", )


PLOTS = [plot_lost, plot_share, plot_fear, plot_help, plot_build, plot_way, plot_birthday, plot_gift, plot_race, plot_seed, plot_truth, plot_rain, plot_market, plot_newfriend, plot_noise, plot_map, plot_skill, plot_soup, plot_baby, plot_wish, plot_storm, plot_robot, plot_quarrel, plot_tidy, plot_snow, plot_night]
# A pet or farm animal has no room of its own, no bike and no lighthouse.
HUMAN_ONLY = {plot_truth, plot_tidy, plot_market, plot_rain, plot_gift, plot_robot}


def story(rng, hero=None):
    plot = rng.choice(PLOTS)
    if hero is None and plot in HUMAN_ONLY:
        hero = person(rng)
    elif hero is not None and not hero.human:
        while plot in HUMAN_ONLY:
            plot = rng.choice(PLOTS)
    s = Story(rng, hero)
    plot(s)
    return s.text()


# --------------------------------------------------------------------------
# Other prose: introductions, letters, diaries, animal facts, recipes


def fill(rng, template, **ctx):
    return tidy(render(parse(template), ctx, rng))


def join(words):
    words = list(words)
    return words[0] if len(words) == 1 else ", ".join(words[:-1]) + " and " + words[-1]


def introduction(rng):
    a, b = person(rng), person(rng)
    kind = rng.choice(["cat", "dog", "rabbit", "horse", "duck", "goat"])
    pet = rng.choice(PETS)
    likes = rng.sample(HOBBIES, 2)
    return fill(
        rng,
        "[[Hello|Hi|Good morning][!|, everybody!|, my friend!] |[Hello|Hi]! |] [My name is {a}|I am {a}], and I am {age} years old. "
        "I live in {city}[| with my {parent}| near the {place}]. [I like {x} and {y}|My favorite hobbies are {x} and {y}|I love {x}, but I do not like {y}]. "
        "[I have a {kind} named {pet}. {pet} is {trait} and likes to [eat {kfood}|sleep in the sun|play with me].|My best friend is {b}. We often go {to} and look at {sight}.|When I grow up, I want to be a {job}.] "
        "[What is your name?|What do you like?|I hope that we will be friends!|I am happy to meet you.|See you soon!|]",
        a=a.name, b=b.name, age=rng.choice(NUMBERS[5:15]), city=rng.choice(CITIES), parent=rng.choice(["mother", "father", "grandmother", "two brothers", "sister"]),
        place=rng.choice(OUTDOORS), x=likes[0], y=likes[1], kind=kind, pet=pet, trait=rng.choice(TRAITS), kfood=ANIMALS[kind][1],
        to=PLACES[rng.choice(OUTDOORS)][1], sight=rng.choice(PLACES["meadow"][3]), job=rng.choice(JOBS),
    )


def letter(rng):
    a, b = person(rng), person(rng)
    place = rng.choice(OUTDOORS)
    where, to, spots, sights = PLACES[place]
    s1, s2 = rng.sample(sights, 2)
    return fill(
        rng,
        "Dear [{b}|Grandma|Grandpa],\n\n[how are you? I am fine.|I hope that you are well.|thank you for your letter.|I miss you very much.] "
        "[Yesterday|Last week|On {day}|Today] we went {to}. [We saw {s1} and {s2}.|There were {s1} everywhere.] "
        "[I found a_ {color} {thing} {spot}.|We ate {food} and [told stories|played games].|It rained, but we had a lot of fun.] "
        "[Tomorrow|Next week|Soon] we will [visit {city}|bake {food}|go {to} again]. [Please write soon.|I would like to show you everything.|I hope to see you soon.]\n\n[Love|Best wishes|Your friend],\n{a}",
        a=a.name, b=b.name, day=rng.choice(DAYS), to=to, where=where, s1=s1, s2=s2, color=rng.choice(COLORS), thing=rng.choice(SMALL_THINGS), spot=rng.choice(spots), food=rng.choice(FOODS), city=rng.choice(CITIES),
    )


def diary(rng):
    place = rng.choice(OUTDOORS)
    where, to, spots, sights = PLACES[place]
    s1, s2 = rng.sample(sights, 2)
    f = person(rng)
    he, him, his, _ = PRONOUNS[f.he]
    return fill(
        rng,
        "[Today was a [good|wonderful|strange|long|busy] day.|I had a [good|wonderful|strange|long] day today.|This morning I woke up early.|It is {day} today.] "
        "[In the morning|After breakfast|After school], I went {to} with my friend {f}. [The weather was [nice|warm|cold and windy].|It was [cold|warm], and I saw {s1}.|We looked at {s1} and {s2}.] "
        "[{f} told me a funny story, and I could not stop laughing.|{f} was sad because {he} had lost {his} {thing}, so I helped {him}. We found it {spot}.|We tried to build a small house out of sticks, but the wind blew it down.|I fell and hurt my knee, but {f} helped me.] "
        "[Then|Later|In the evening], [I ate {food} at home|my {parent} cooked {food} for us|we all ate {food}]. [It was very good.|I was so hungry!|I ate too much.] "
        "[Now I am tired and happy.|I think that I will sleep well tonight.|I hope that tomorrow will be just as good.|Good night!]",
        day=rng.choice(DAYS), to=to, f=f.name, s1=s1, s2=s2, he=he, him=him, his=his, thing=rng.choice(SMALL_THINGS), spot=rng.choice(spots), food=rng.choice(FOODS), parent=rng.choice(["mother", "father", "grandmother", "grandfather", "brother", "sister"]),
    )


def facts(rng, kind=None):
    kind = kind or rng.choice(sorted(ANIMALS))
    home, food, fact, like, sound = ANIMALS[kind]
    return fill(
        rng,
        "[The {kind} is a_ {like} animal.|A_ {kind} is a_ {like} animal.] [It lives {home}.|You can find it {home}.|] {fact}. "
        "[It likes to eat {food}.|Its favorite food is {food}.] [|A_ {kind} {sound}.|When it is happy, it {sound}.] [Many children like this animal.|It is one of my favorite animals.|]",
        kind=kind, home=home, food=food, fact=fact, like=like, sound=sound,
    )


RECIPES = [
    ("soup", ["wash and cut the carrots", "boil some water in a big pot", "add the carrots and a little salt", "cook everything for twenty minutes"]),
    ("pancakes", ["mix flour, milk and two eggs in a bowl", "heat a little butter in a pan", "pour some of the mix into the pan", "turn the pancake when it is golden"]),
    ("tea", ["boil some water", "put a tea bag into a cup", "pour the hot water into the cup", "wait for three minutes"]),
    ("a fruit salad", ["wash an apple, a pear and some grapes", "cut the fruit into small pieces", "put everything into a bowl", "add a little lemon juice"]),
    ("a cheese sandwich", ["take two slices of bread", "put some butter on the bread", "put the cheese between the slices", "cut the sandwich in half"]),
    ("a paper boat", ["take a sheet of paper", "fold it in the middle", "fold the corners down", "pull the sides apart gently"]),
    ("a small garden", ["find a sunny place", "dig little holes in the ground", "put a seed into every hole", "give the seeds some water every day"]),
]


def recipe(rng, item=None):
    name, steps = item or rng.choice(RECIPES)
    words = rng.choice([("First", "Then", "After that", "Finally"), ("First", "Next", "Then", "At the end")])
    body = " ".join(f"{w}, {s}." for w, s in zip(words, steps))
    verb = "plant" if "garden" in name else "fold" if "boat" in name else "make"
    head = rng.choice([f"It is easy to {verb} {name}.", f"This is how you {verb} {name}.", f"Do you want to {verb} {name}?"])
    tail = rng.choice(["That is all!", "Now you can enjoy it.", "It is best to do it with a friend.", "Be careful and ask for help if you need it."])
    return f"{head} {body} {tail}"


def season(rng):
    name = rng.choice(sorted(SEASONS))
    return fill(rng, "[In {s}, {what}.|{S} is my favorite season, because {what}.|I like {s}. {what2}.] [We often go {to} and look at {sight}.|The children play {where}.|At home, we eat {food} together.] [It is a good time of the year.|I am always sad when {s} is over.|Then the next season comes.]",
                s=name, S=name.capitalize(), what=SEASONS[name], what2=SEASONS[name][0].upper() + SEASONS[name][1:], food=rng.choice(FOODS),
                **dict(zip(("where", "to"), PLACES[rng.choice(OUTDOORS)][:2])), sight=rng.choice(["the trees", "the clouds", "the birds", "the fields"]))


PROSE = [introduction, introduction, letter, diary, diary, facts, recipe, season]

# --------------------------------------------------------------------------
# JSON


def json_person(rng, name=None, age=None, city=None):
    o = {"name": name or person(rng).name, "age": age or rng.randint(5, 80)}
    if city or rng.random() < 0.6:
        o["city"] = city or rng.choice(CITIES)
    if rng.random() < 0.5:
        o["job" if o["age"] > 18 else "school"] = rng.choice(JOBS) if o["age"] > 18 else rng.choice(CITIES) + " School"
    if rng.random() < 0.6:
        o["hobbies"] = rng.sample(HOBBIES, rng.randint(1, 3))
    if rng.random() < 0.3:
        o["active"] = rng.random() < 0.7
    return o


def json_pet(rng, name=None, kind=None, age=None):
    kind = kind or rng.choice(sorted(ANIMALS))
    o = {"name": name or rng.choice(PETS), "kind": kind, "age": age or rng.randint(1, 12)}
    if rng.random() < 0.5:
        o["color"] = rng.choice(COLORS)
    if rng.random() < 0.5:
        o["food"] = ANIMALS[kind][1]
    if rng.random() < 0.3:
        o["owner"] = {"name": person(rng).name, "city": rng.choice(CITIES)}
    return o


def json_item(rng):
    o = {"id": rng.randint(1, 99), "item": rng.choice(SMALL_THINGS + TOYS), "price": rng.randint(1, 40)}
    if rng.random() < 0.5:
        o["color"] = rng.choice(COLORS)
    if rng.random() < 0.5:
        o["in_stock"] = rng.random() < 0.7
    if rng.random() < 0.3:
        o["tags"] = rng.sample(["new", "old", "small", "big", "gift", "sale", "wood", "toy"], rng.randint(1, 3))
    return o


def json_place(rng):
    p = rng.choice(sorted(PLACES))
    o = {"place": p, "sights": rng.sample(PLACES[p][3], rng.randint(1, 3)), "open": rng.random() < 0.8}
    if rng.random() < 0.5:
        o["visitors"] = rng.randint(1, 99)
    if rng.random() < 0.3:
        o["note"] = None
    return o


def json_object(rng):
    return rng.choice([json_person, json_person, json_pet, json_item, json_place])(rng)


def json_text(rng, value=None):
    value = value or json_object(rng)
    if rng.random() < 0.1:
        value = [json_item(rng) for _ in range(rng.randint(2, 3))]
    return json.dumps(value, indent=2 if rng.random() < 0.25 else None)


# --------------------------------------------------------------------------
# Dialogue


def turns_greeting(rng):
    p = person(rng).name
    return rng.choice([
        (fill(rng, "[Hello|Hi|Hello there|Hey|Good morning][!|.|]"), fill(rng, "[Hello|Hi|Good day]! [How can I help you?|What can I do for you?|It is nice to meet you. How can I help you today?|Would you like to hear a story?]")),
        (fill(rng, "[Hello|Hi][!|,] [my name is|I am] {p}.", p=p), fill(rng, "[Hello, {p}!|Hi, {p}!] [It is nice to meet you.|How are you today?|What can I do for you?]", p=p)),
        (fill(rng, "[How are you?|How are you today?|Are you well?]"), fill(rng, "[I am fine, thank you.|I am very well, thank you.] [And how are you?|How can I help you?]")),
        (fill(rng, "[Who are you?|What are you?|What is your name?]"), fill(rng, "[I am wgslm-tiny, a very small language model.|My name is wgslm-tiny. I am a very small language model.] [I like to tell short stories.|I can tell you a short story.]")),
        (fill(rng, "[What can you do?|How can you help me?|What do you know?]"), fill(rng, "I can [tell short stories, answer simple questions and write small JSON objects|tell you a story, talk with you a little and write some JSON]. [I am very small, so please do not expect too much.|What would you like?]")),
        (fill(rng, "[Thank you!|Thanks.|Thank you very much.]"), fill(rng, "[You are welcome!|It was a pleasure.|I am glad that I could help.]")),
        (fill(rng, "[Goodbye!|Bye!|Good night.|See you later.]"), fill(rng, "[Goodbye! Have a nice day.|Bye! See you soon.|Good night! Sleep well.]")),
    ])


def turns_story(rng):
    hero, about = None, ""
    if rng.random() < 0.8:
        hero = person(rng) if rng.random() < 0.4 else animal(rng)
        about = " about a_ [|little|small|brave] {kind}[|| named {name}| called {name}]"
    ask = fill(
        rng,
        f"[Tell me a [|short] story{about}.|Please tell me a [|short] story{about}.|Write a [|short] story{about}.|Can you tell me a story{about}?|I would like to hear a story{about}.]",
        kind=hero.kind if hero else "", name=hero.name if hero else "",
    )
    return ask, story(rng, hero)


def turns_fact(rng):
    k = rng.random()
    if k < 0.2:
        a = rng.choice(sorted(ANIMALS))
        return fill(rng, "[What is a_ {a}?|Tell me about the {a}.|What do you know about a_ {a}?|Tell me something about {a}s.]", a=a).replace("sheeps", "sheep").replace("deers", "deer").replace("foxs", "foxes").replace("mouses", "mice"), facts(rng, a)
    if k < 0.3:
        a = rng.choice(sorted(ANIMALS))
        return fill(rng, "What does a_ {a} eat?", a=a), fill(rng, "A_ {a} likes to eat {f}.", a=a, f=ANIMALS[a][1])
    if k < 0.45:
        x, c = rng.choice(COLOR_OF)
        return f"What color is {x}?", fill(rng, "[{X} is {c}.|It is {c}.|The color of {x} is {c}.]", x=x, X=x[0].upper() + x[1:], c=c)
    if k < 0.6:
        x, y = rng.choice(OPPOSITES)
        if rng.random() < 0.5:
            x, y = y, x
        return fill(rng, '[What is the opposite of "{x}"?|What is the opposite of {x}?]', x=x), fill(rng, '[The opposite of "{x}" is "{y}".|It is "{y}".]', x=x, y=y)
    if k < 0.8:
        a, b = rng.randint(0, 10), rng.randint(0, 10)
        if rng.random() < 0.6:
            return fill(rng, "[What is {a} + {b}?|What is {a} plus {b}?|How much is {a} + {b}?]", a=str(a), b=str(b)), fill(rng, "[{a} + {b} = {c}.|{a} plus {b} is {c}.|It is {c}.|The answer is {c}.]", a=str(a), b=str(b), c=str(a + b))
        a, b = max(a, b), min(a, b)
        return fill(rng, "[What is {a} - {b}?|What is {a} minus {b}?]", a=str(a), b=str(b)), fill(rng, "[{a} - {b} = {c}.|{a} minus {b} is {c}.|It is {c}.]", a=str(a), b=str(b), c=str(a - b))
    if k < 0.9:
        i = rng.randrange(7)
        return f"What day comes after {DAYS[i]}?", fill(rng, "[{n} comes after {d}.|It is {n}.]", n=DAYS[(i + 1) % 7], d=DAYS[i])
    name, steps = item = rng.choice(RECIPES)
    return fill(rng, "[How do I {v} {n}?|How can I {v} {n}?]", v="plant" if "garden" in name else "fold" if "boat" in name else "make", n=name), recipe(rng, item)


def turns_unknown(rng):
    u = rng.choice(UNKNOWN) if rng.random() < 0.7 else rng.choice([invented_name(rng), rng.choice(CITIES), rng.choice(JOBS) + "s"])
    # "What is" needs a singular.
    ask = "" if u.endswith("s") and not u.endswith("ics") else "What is {u}?|How does {u} work?|"
    return fill(rng, f"[{ask}Tell me about {{u}}.|Explain {{u}}.|What do you know about {{u}}?|Can you explain {{u}} to me?]", u=u), fill(rng, "[I am sorry, but I do not know much about {u}.|I do not know anything about {u}.|I am afraid that I cannot tell you much about {u}.] [I am a very small model.|I am too small to know that.] [Would you like to hear a story?|But I can tell you a story, if you like.|Ask me for a short story!]", u=u)


def turns_feeling(rng):
    return rng.choice([
        (fill(rng, "[I am sad.|I feel sad today.|I am so sad.]"), fill(rng, "[I am sorry to hear that.|Oh, I am sorry.] [Do you want to talk about it?|A walk or a talk with a friend may help.|Tomorrow may be a better day.]")),
        (fill(rng, "[I am happy!|I had a good day.|Today was a good day!]"), fill(rng, "[That is wonderful!|I am glad to hear that!] [What happened?|Tell me more.]")),
        (fill(rng, "[I am bored.|I have nothing to do.]"), fill(rng, "[You could go {to} and look for something {c}.|You could draw a picture of a_ {a}.|Shall I tell you a story?]", to=PLACES[rng.choice(OUTDOORS)][1], c=rng.choice(COLORS), a=rng.choice(sorted(ANIMALS)))),
        (fill(rng, "[I am tired.|I cannot sleep.]"), fill(rng, "[Close your eyes and think of a quiet place.|A cup of warm milk may help.|Then it is time to rest.] Good night!")),
        (fill(rng, "[I am hungry.|What should I eat?|What can I cook today?]"), fill(rng, "[How about {x} or {y}?|You could make {x}.|I would choose {x}.] [It is easy and good.|Enjoy your meal!]", x=rng.choice(FOODS[:6]), y=rng.choice(FOODS[6:]))),
        (fill(rng, "[Tell me a joke.|Do you know a joke?|Say something funny.]"), fill(rng, "[Why did the {a} cross the road? Because it wanted to see the {p} on the other side!|What does a_ {a} do when it rains? It gets wet!]", a=rng.choice(sorted(ANIMALS)), p=rng.choice(OUTDOORS))),
    ])


def turns_json(rng):
    if rng.random() < 0.5:
        n, age, city = person(rng).name, rng.randint(5, 80), rng.choice(CITIES)
        ask = fill(rng, "[Write|Give me|Make] a JSON object for a person named {n} who is {a} years old and lives in {c}.", n=n, a=str(age), c=city)
        return ask, json.dumps(json_person(rng, n, age, city))
    if rng.random() < 0.6:
        n, kind, age = rng.choice(PETS), rng.choice(sorted(ANIMALS)), rng.randint(1, 12)
        ask = fill(rng, "[Write|Give me|Make] a JSON object for a_ {k} named {n} that is {a} years old.", n=n, k=kind, a=str(age))
        return ask, json.dumps(json_pet(rng, n, kind, age))
    what, make = rng.choice([("a person", json_person), ("an animal", json_pet), ("an item", json_item), ("a place", json_place)])
    return fill(rng, "[Write|Give me|Make] a JSON object about {w}.", w=what), json.dumps(make(rng))


TURNS = [turns_greeting, turns_greeting, turns_story, turns_fact, turns_fact, turns_unknown, turns_feeling, turns_json]
SYSTEM = ["You are a helpful assistant.", "You are a friendly assistant.", "You tell short stories.", "You are wgslm-tiny, a very small language model.", "Answer in short sentences.", "Be kind and helpful.", "You are a helpful AI assistant."]


def dialogue(rng):
    out = []
    if rng.random() < 0.4:
        out.append(("system", rng.choice(SYSTEM)))
    for i in range(rng.choice([1, 1, 1, 2, 2, 3])):
        make = turns_greeting if i == 0 and rng.random() < 0.2 else rng.choice(TURNS)
        q, a = make(rng)
        if rng.random() < 0.05:
            q = q.lower().rstrip(".?!")  # people type carelessly
        out += [("user", q), ("assistant", a)]
    return "".join(f"{IM_START}{role}\n{text}{IM_END}\n" for role, text in out)


# --------------------------------------------------------------------------


def document(rng):
    k = rng.random()
    if k < 0.62:
        return story(rng)
    if k < 0.72:
        return rng.choice(PROSE)(rng)
    if k < 0.86:  # about an eighth of the tokens, with the stories told in them
        return dialogue(rng)
    return json_text(rng)


def documents(seed):
    rng = random.Random(seed)
    while True:
        yield document(rng)


if __name__ == "__main__":
    ap = argparse.ArgumentParser()
    ap.add_argument("count", type=int)
    ap.add_argument("--seed", type=int, default=1)
    args = ap.parse_args()
    stream = documents(args.seed)
    for _ in range(args.count):
        print(next(stream), end="\n----\n")
