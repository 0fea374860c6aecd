"""Counts the instructions of the loop in which a kernel spends its time, in RADV's final assembly.

Listed instructions, not executed ones: a loop inside the loop counts once, and so does what a branch skips.
"""
import re

# What a turn of the loop holds: all instructions, those of the vector units, WMMAs, dot products of four int8, multiply-adds,
# and loops in the loop.
COLUMNS = ["loop", "loop VALU", "loop WMMA", "loop dot4", "loop fma", "loop loops"]
LABEL = re.compile(r"BB(\d+):")
BRANCH = re.compile(r"s_c?branch\S* BB(\d+)")
# Of f16 or f32, in any of the forms that GPUs from GCN on have; both halves of a dual instruction.
MULTIPLY_ADD = re.compile(r"\bv_(?P<two>pk_(?:fma|mad)|dot2)|\bv_(?:dual_)?(?:fma|mac_f|mad_f|mad_mix)")


def blocks(assembly):
    """(number, instructions) of each basic block, in the order of their addresses."""
    found = []
    for line in assembly.splitlines():
        label = LABEL.match(line)
        if label:
            found.append((int(label[1]), []))
        elif found and line.startswith("\t"):
            found[-1][1].append(line.split(";")[0].strip())
    return found


def loops(found):
    """(first, last) positions of the blocks between a branch backwards and its target, one for each target."""
    position = {number: at for at, (number, _) in enumerate(found)}
    ends = {}
    for at, (_, instructions) in enumerate(found):
        for instruction in instructions:
            branch = BRANCH.match(instruction)
            if branch and position.get(int(branch[1]), at + 1) <= at:
                ends[position[int(branch[1])]] = at
    return list(ends.items())


def multiply_adds(instructions):
    return sum(2 if one["two"] else 1 for text in instructions for one in MULTIPLY_ADD.finditer(text))


def products(instructions):
    """How many products: a dot product of int8 or of matrices is worth more than one."""
    starts = lambda name: sum(text.startswith(name) for text in instructions)
    return 1024 * starts("v_wmma") + 4 * starts("v_dot4") + multiply_adds(instructions)


def hot_loop(assembly):
    """The smallest loop with at least half of the products of any; of tiles, that which waits at barriers, too."""
    found = blocks(assembly)
    inside = lambda loop: [text for _, instructions in found[loop[0] : loop[1] + 1] for text in instructions]
    every = [(inside(loop), loop) for loop in loops(found)]
    most = max((products(instructions) for instructions, _ in every), default=0)
    if most == 0:
        return None
    hot = [(len(instructions), instructions, loop) for instructions, loop in every if 2 * products(instructions) >= most]
    tiled = [one for one in hot if any(text.startswith("s_barrier") for text in one[1])]
    _, instructions, loop = min(tiled or hot)
    inner = sum(loop[0] <= first and last <= loop[1] for _, (first, last) in every) - 1
    return instructions, inner


def counts(text):
    """COLUMNS of a pipeline, from all its texts; empty if it has no such loop."""
    found = hot_loop(text.partition("==== Assembly")[2])
    if found is None:
        return [""] * len(COLUMNS)
    instructions, inner = found
    starts = lambda name: sum(text.startswith(name) for text in instructions)
    wmma = starts("v_wmma")
    row = [len(instructions), starts("v_") - wmma, wmma, starts("v_dot4"), multiply_adds(instructions), inner]
    return [str(number) for number in row]
