# SPDX-License-Identifier: Apache-2.0
"""Plain nouns, and a way to have more names than a list holds."""

from __future__ import annotations

import re
from collections.abc import Sequence

WORDS = re.findall(
    r"\w+",
    """
    apple anchor arrow basket beacon blanket bottle bridge bucket button cabin candle canvas
    carpet castle chain chalk chimney circle clock coffee collar copper corner cotton cradle
    curtain cushion desert diamond dinner donkey drawer engine envelope fabric falcon farmer
    feather fiddle finger flame flower forest fountain garlic glove grain guitar hammer
    harvest helmet honey island ivory jacket jungle kettle kitten ladder lantern leather lemon
    letter marble market meadow mirror monkey mountain needle nickel notebook ocean olive
    orange oyster paddle paper parrot pebble pencil pepper pillow planet pocket potato puddle
    puzzle rabbit ribbon river rocket saddle sailor salmon sandal scarf shadow shovel silver
    slipper spider spoon statue stone sugar summer table temple thunder ticket tiger tomato
    trumpet tunnel turtle valley velvet village violin wagon walnut window winter yogurt zebra
    """,
)


def endless(names: Sequence[str], index: int) -> str:
    """Return the index-th name; past the end they come again with a number."""
    again, place = divmod(index, len(names))
    return f"{names[place]} {again + 1}" if again else names[place]
