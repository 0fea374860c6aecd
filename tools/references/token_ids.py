"""Ids of texts by Hugging Face's tokenizers and by SentencePiece: tests/data/tokens/. See also token_ids.mjs.

    python token_ids.py

Writes texts.json, and NAME.json with an item a text: {"ids": control tokens are text, "special": they are themselves, if that differs}.
"""
import json
import random

from tokenizers import Tokenizer

import common
from common import DATA, fetched, write_json

SHORT = [
    '',
    ' ',
    '  ',
    '   ',
    'a b',
    'a  b',
    'a   b',
    ' a',
    ' a ',
    'a\n',
    '\n',
    '\n\n',
    '\n\n\nx',
    'a\n\n b\n  c',
    '\t',
    '\t\tx\ty',
    '\r\n',
    'a\r\nb\r\n',
    '   \n   \n',
    'word   \n',
    'Hello, world!',
    'Hello,world!!!',
    "don't can't we'll I'm you've he'd",
    "DON'T CAN'T",
    '1',
    '12',
    '123',
    '1234567890',
    '3.14159',
    '1,000,000',
    '2026-11-21T09:02:53Z',
    'a1b2c3',
    'x=1;y=2',
    'v1.2.3-rc4',
    '\xbd \xb2 \u2167 \u0663 \u096a \uff15',
    'caf\xe9',
    'cafe\u0301',
    '\xc5ngstr\xf6m \xc5NGSTR\xd6M',
    'Stra\xdfe',
    'na\xefve\u2014\u201cquoted\u201d\u2026',
    '\u65e5\u672c\u8a9e\u306e\u30c6\u30ad\u30b9\u30c8',
    '\u4e2d\u6587\u5b57\u7b26\u6d4b\u8bd5',
    '\ud55c\uad6d\uc5b4 \ud14d\uc2a4\ud2b8',
    '\u041f\u0440\u0438\u0432\u0435\u0442 \u043c\u0438\u0440',
    '\u0645\u0631\u062d\u0628\u0627 \u0628\u0627\u0644\u0639\u0627\u0644\u0645',
    '\u05e9\u05dc\u05d5\u05dd \u05e2\u05d5\u05dc\u05dd',
    '\u0928\u092e\u0938\u094d\u0924\u0947 \u0926\u0941\u0928\u093f\u092f\u093e',
    '\u0e2a\u0e27\u0e31\u0e2a\u0e14\u0e35\u0e0a\u0e32\u0e27\u0e42\u0e25\u0e01',
    '\U0001f600',
    '\U0001f468\u200d\U0001f469\u200d\U0001f467\u200d\U0001f466',
    '\U0001f1ef\U0001f1f5\U0001f1eb\U0001f1f7',
    '\U0001f44d\U0001f3fd ok \U0001f3f3\ufe0f\u200d\U0001f308',
    '\u200b\u200d\ufeff',
    '\xa0\u3000x',
    'e\u0301\u0323',
    '\x00a\x07b',
    '\u2581under\u2581score\u2581',
    '_ __ ___',
    '    def f(x):\n        return x ** 2\n',
    '<div class="a">&amp;</div>',
    'https://example.com/path?q=1&r=%20#frag',
    'C:\\Users\\x\\y.txt',
    'aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa',
    '................................',
    '=====-----+++++',
    'supercalifragilisticexpialidocious',
    '\U0001d400\U0001d401\U0001d402 \U0001d518\U0001d52b\U0001d526',
    '\U0010ffff\U000e0001',
    '\u0120 \u010a \xc3\xa9',
    '<0x0A>',
    'The\u2028line\u2029sep',
    '<start_of_turn>user\nhi<end_of_turn>\n',
    'a<end_of_turn>b <start_of_turn> c',
    '<start_of_turn',
    '<0x0A><0x41>',
    '<bos>a<eos>',
    '<unused0><unused99>',
    '<pad><unk><mask>',
    '[multimodal]<start_of_image>',
    '<|im_start|>user\nhi<|im_end|>\n',
    'a<|im_end|>b <|im_start|> c',
    '<|im_start|',
    '<|IM_END|>',
    '<|endoftext|>',
    '<repo_name>x<file_sep>y',
    '<|im_end|><|im_end|>',
    ' <|im_start|> system',
]

# Paragraphs of our own in many languages, with what tokenizers treat apart: digits, marks, cases, blanks, controls.
PARAGRAPHS = [
    "The ferry leaves at 7:45, 12:10 and 18:30; tickets cost 4.50 (children: 2.25). Don't be late, we won't wait!",
    "Die Fähre über die Elbe fährt täglich außer sonntags. Größere Gepäckstücke müssen angemeldet werden.",
    "Le bac part à l'aube ; « n'oubliez pas vos gants », disait la vieille dame, l'œil rieur.",
    "¿A qué hora sale el barco? A las ocho menos cuarto, señor. ¡Qué frío hace mañana por la mañana!",
    "Паром отходит в половине восьмого. Билеты продаются у причала, а ещё — в лавке тёти Зои.",
    "Ο βαρκάρης έδεσε το σχοινί και περίμενε. Ήταν ήδη αργά, κι η θάλασσα σκοτείνιαζε.",
    "渡し船は七時四十五分に出ます。切符は港の売店で買ってください。雨の日は運休します！",
    "渡轮每天早上七点四十五分出发，票价四元五角。请提前十分钟到达码头，谢谢。",
    "나룻배는 아침 일곱 시 사십오 분에 떠납니다. 표는 부두 가게에서 살 수 있어요.",
    "تغادر العبّارة في الساعة السابعة وخمس وأربعين دقيقة. تُباع التذاكر عند الرصيف.",
    "המעבורת יוצאת בשבע ארבעים וחמש. אפשר לקנות כרטיסים בחנות שליד הרציף.",
    "नाव सुबह सात बजकर पैंतालीस मिनट पर चलती है। टिकट घाट की दुकान पर मिलते हैं।",
    "เรือข้ามฟากออกเวลาเจ็ดโมงสี่สิบห้านาที ซื้อตั๋วได้ที่ร้านริมท่า",
    "ბორანი დილით შვიდის ორმოცდახუთ წუთზე გადის. ბილეთები ნავსადგურთან იყიდება.",
    "Փոխադրանավը մեկնում է առավոտյան։ Տոմսերը վաճառվում են նավամատույցում։",
    "Phà rời bến lúc bảy giờ bốn mươi lăm phút sáng. Vé bán ở cửa hàng cạnh bến.",
    "Feribot sabah yediyi kırk beş geçe kalkar. İskeledeki dükkânda bilet satılır; ISPARTA'ya ışık düşer.",
    "Prom odpływa o siódmej czterdzieści pięć. Zażółć gęślą jaźń, mówi tabliczka na molo.",
    "தோணி காலை ஏழு நாற்பத்தைந்துக்குப் புறப்படும். சீட்டு துறையில் கிடைக்கும்.",
    "ጀልባው ጠዋት ይነሳል። ቲኬት በወደቡ ሱቅ ይሸጣል።",
    "⛴️ 7:45 → 🏝️ 8:20, 👩‍✈️ & 👨🏽‍🔧 on board, 🐕‍🦺 welcome; 🇫🇮🇸🇪🇳🇴 flags, ☔️ or ☀️, 5️⃣ euros ✅",
    "∀ε>0 ∃δ>0: |x−a|<δ ⇒ |f(x)−f(a)|<ε; ∑ᵢ₌₁ⁿ i = n(n+1)/2, π≈3.14159265358979, 2¹⁰=1024, ½+¼=¾, №5",
    "fn ferry(at: &str) -> Result<u32, Error> {\n    let n: u32 = at.parse()?;\n\tif n >= 1_000 { return Err(Error::Late); }\n    Ok(n ^ 0xFF)\n}\n",
    "SELECT name, count(*) FROM boats WHERE kind='ferry' AND length_m >= 12.5 GROUP BY name;\r\n-- ok\r\n",
    "<p class=\"note\">Tom &amp; Ann&#39;s boat</p>\n\n\n  {\"id\": 17, \"open\": [true, false, null], \"x\": -1.5e-7}\n",
    "I'LL BE THERE'S WE'VE THEY'D it's IT'S you're Y'ALL'D'VE o'clock 'tis rock'n'roll",
    "one  two   three    four     five\t\tsix \t seven\u00a0eight\u2003nine\u3000ten \n \n\n  eleven  ",
    "𝒜𝓁𝓁 𝖋𝖔𝖓𝖙𝖘 ＡＢＣ１２３ Ⅳⅷↀ ﬁﬂ ㍿ ㌔ ｶﾞ が か゛ Å Å Å ộ ộ ṩ ṩ Z͑ͫ̓ͪ̂ͫ̽͏̴a̴l̴g̶o̵",
    "a\u0300\u0301\u0302 \u202eright\u202c \u2066left\u2069 soft\u00adhyphen zero\u200bwidth \ufeffmark \ufffd \x01\x1f\x7f end",
    "<s>[INST] <<SYS>> be kind <</SYS>> who? [/INST] me </s><|endoftext|><|im_start|>x<|im_end|><unk>▁",
    "README.md v2.0.0-rc.1 http://localhost:8080/a?b=c#d user@example.org +49 (0)30 123-456 #tag @name $9.99 50% 12°C",
    "ĀāĂ㥹ĆćĈĉĊċČčĎďĐđ ĒēĔĕĖėĘęĚě ГДЕЖЗ абвгд ΑΒΓΔΕ αβγδε 0123456789 ٠١٢٣٤ ०१२३४ 〇一二三四",
]


def mixed():
    """Pieces of the paragraphs in random order, glued in random ways: borders of scripts, cases and blanks everywhere."""
    rng = random.Random(20250710)
    glue = ["", "", " ", " ", "  ", "\n", "\t", "'", "-", "▁", "1", ".", "\u0301"]
    for _ in range(60):
        text = ""
        while len(text) < 160:
            paragraph = rng.choice(PARAGRAPHS)
            start = rng.randrange(len(paragraph))
            text += paragraph[start : start + rng.randint(1, 9)] + rng.choice(glue)
        yield text


def texts():
    stories = (DATA / "text/stories.txt").read_text()[:2000]
    whole = "\n".join(PARAGRAPHS)
    return SHORT + PARAGRAPHS + list(mixed()) + [whole, stories]


def metaspace(llama2):
    """llama2.json in the form of newer files, with more control tokens. Tests make the same change."""
    llama2["normalizer"] = None
    llama2["pre_tokenizer"] = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first", "split": False}
    for i, content in enumerate(["[INST]", "[/INST]", "[TOOL_CALLS]", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]"]):
        llama2["added_tokens"].append({"id": 32000 + i, "content": content, "single_word": False, "lstrip": False,
                                       "rstrip": False, "normalized": False, "special": True})
    return llama2


def write(name, encode, all_texts):
    """`encode(text, special)` gives ids; those with control tokens parsed are kept where they differ."""
    lines = []
    for text in all_texts:
        plain, special = encode(text, False), encode(text, True)
        lines.append({"ids": plain} if special in (plain, None) else {"ids": plain, "special": special})
    write_json(DATA / f"tokens/{name}.json", lines)
    print(f"{name}: {len(lines)} texts, {sum('special' in line for line in lines)} with control tokens", flush=True)


def by_tokenizers(tokenizer):
    def encode(text, special):
        tokenizer.encode_special_tokens = not special
        return tokenizer.encode(text, add_special_tokens=False).ids
    return encode


def main():
    all_texts = texts()
    write_json(DATA / "tokens/texts.json", all_texts)

    tokenizer = Tokenizer.from_file(str(fetched("tokenizers/gpt2.json")))
    write("tokenizers/gpt2", by_tokenizers(tokenizer), all_texts)
    file = fetched("tokenizers/llama2.json").read_text()
    write("tokenizers/llama2", by_tokenizers(Tokenizer.from_str(file)), all_texts)
    changed = json.dumps(metaspace(json.loads(file)))
    write("tokenizers/llama2-metaspace", by_tokenizers(Tokenizer.from_str(changed)), all_texts)

    vocabulary = common.Vocabulary(fetched("models/SmolLM2-135M-Instruct.Q4_1.gguf"))
    write("tokenizers/smollm2", by_tokenizers(common.smollm2(vocabulary)), all_texts)
    vocabulary = common.Vocabulary(fetched("vocab-gguf/ggml-vocab-bert-bge.gguf"))
    write("tokenizers/bert-bge", by_tokenizers(common.bert(vocabulary)), all_texts)
    vocabulary = common.Vocabulary(fetched("models/gemma-3-270m-q4_k_m.gguf"))
    processor = common.sentencepiece_bpe(vocabulary)
    write("sentencepiece/gemma3",
          lambda text, special: common.sentencepiece_ids(processor, vocabulary, text, special), all_texts)


if __name__ == "__main__":
    main()
