"""Words around a number: which may stand in front, which end a statement, and which change its value.

Lists are closed, also that of the nouns which a number may stand in front of: any other word leaves the number unread.
A wrong answer that is paid costs more than a right one that is not. A noun says nothing of the value of its number, and
is passed over. Words that do are in no list, however plural they look: numbers, shares and multiples (`lakhs`,
`fifths`, `dozens`, also of coins and years: `dimes`, `decades`), signs, functions, letters, and verbs such as `misses`.
"""

import re
from itertools import pairwise

_REGULAR = (
    # People.
    "actor adult artist athlete aunt author baby baker boy brother buyer candidate captain chef classmate client "
    "coach colleague contestant cook cousin customer dancer daughter doctor driver employee engineer family farmer "
    "father friend girl graduate guard guest guy hiker individual inhabitant kid king knight lady lawyer member "
    "mother musician neighbor neighbour nurse painter parent participant passenger patient pirate player pupil "
    "queen resident runner sailor scientist senator singer sister soldier son spectator student teacher teenager "
    "tenant tourist traveler traveller uncle user visitor volunteer voter waiter waitress winner worker "
    # Animals.
    "animal ant bear bee beetle bird bug bull bunny butterfly camel cat caterpillar chick chicken cow crab dinosaur "
    "dog dolphin donkey dragon duck duckling eagle elephant fox frog giraffe goat hamster hen horse insect kangaroo "
    "kitten lamb lion lizard lobster monkey octopus owl panda parrot penguin pet pig pigeon pony puppy rabbit rat "
    "rooster shark snail snake spider squirrel swan tiger turkey turtle whale worm zebra "
    # Food and drink.
    "apple apricot avocado bagel banana bean berry biscuit blueberry bun burger burrito cake candy carrot cherry "
    "chip chocolate coconut cookie cracker croissant cucumber cupcake donut doughnut drink dumpling egg fig grape "
    "grapefruit hamburger hotdog jellybean kiwi lemon lime lollipop mango marshmallow meal meatball melon milkshake "
    "muffin mushroom nut olive onion orange pancake pea peach peanut pear pepper pickle pie pineapple pizza plum "
    "pretzel pumpkin radish raisin roll salad sandwich sausage seed smoothie snack soda steak strawberry sweet taco "
    "tangerine toffee tomato vegetable waffle walnut watermelon "
    # Household, clothes, school, toys.
    "armchair backpack badge bag ball balloon bandage basket basketball bat bead bed bell belt bench bike blanket "
    "block boat book bookcase bookmark boot bottle bouquet bowl box bracelet brick brush bucket bulb button "
    "calculator camera can candle cap car card carton chair clock coat coin comic computer cookbook cot couch crate "
    "crayon cube cup curtain cushion desk diamond dictionary dish doll door drawer dress drum earring envelope "
    "eraser fan feather flag flower folder football fork frame game gem gift glass glove guitar hammer handkerchief "
    "hat helmet jacket jar jewel jug kettle key kite ladder lamp letter lock magazine magnet map marble marker mask "
    "mirror mitten mug nail napkin necklace needle net newspaper notebook novel ornament pan pant parcel peg pen "
    "pencil phone photo photograph piano picture pillow pin plant plate poster pot present prize puzzle quilt "
    "racket radio ribbon ring robe robot rope rose ruler sail sandal scarf shirt shoe shovel skirt sneaker sock "
    "sofa souvenir spoon stamp stapler stick sticker stone stool suitcase sunflower sweater sword table tablet tape "
    "teapot television tent ticket tie tile tire token tool toothbrush toothpick towel toy tray trinket trophy "
    "truck tulip umbrella uniform vase video violin wallet watch wheel whistle window "
    # Places, plants, vehicles.
    "airplane aquarium bakery barn beach bicycle branch bridge building bus bush cabin cactus camp city classroom "
    "country county daisy elevator farm fence field flat flight floor garage garden highway hole hotel house island "
    "lake lane library lily mountain museum orchid park path plane planet pond pool restaurant river road rocket "
    "room school scooter seat ship shop skyscraper space star state station store street stripe submarine tank taxi "
    "tower town tractor train tree van vehicle village wagon wall yacht zoo "
    # Parts, containers, groups, events.
    "action activity album arm attempt bit bunch bundle chapter charge class club column committee concert "
    "container course crew cycle cylinder delivery draw drop ear episode essay event exam exercise eye finger flock "
    "gap goal group handshake homework hop item job jump lap layer leg lesson level lever line list load match "
    "medal meeting message minibus move movie night note offer outfit pack package packet page painting paper "
    "paragraph party patch payment performance petal piece pile plan poem practice problem program project purchase "
    "question race recipe report review ride round row run sack sale sample scoop section sentence serving session "
    "sheet shift shot show side slice slide song sport spot stack step stop story subject tail task team test text "
    "toe tour tournament trip turn visit vote weekend win word workout "
    # Mathematics.
    "angle arrangement case choice circle coefficient combination cone configuration corner counterexample "
    "criterion diagonal digit divisor edge element ellipse equation face factor function hexagon integer "
    "intersection interval number octagon outcome parabola partition pattern pentagon permutation pixel polygon "
    "polynomial possibility prism pyramid quadrilateral rectangle region rhombus segment sequence set shape "
    "solution sphere square subset symmetry term triangle value variable vector "
    # Chemistry, physics, computing.
    "atom bacterium bond byte cell cent chromosome crystal dot electron file gene ion isomer molecule neutron "
    "particle photon proton "
    # French and Spanish with an English plural.
    "alumna alumno bille bonbon cahier canica caramelo casa chat chien coche enfant estudiante fille fleur garçon "
    "gato huevo libro maison manzana naranja niña niño pera perro persona personne poire pomme página stylo voiture "
    "élève étudiant"
)
_IRREGULAR = {
    **{"children": "child", "people": "person", "persons": "person", "men": "man", "women": "woman", "mice": "mouse"},
    **{"geese": "goose", "teeth": "tooth", "oxen": "ox", "dice": "die", "knives": "knife", "leaves": "leaf"},
    **{"loaves": "loaf", "shelves": "shelf", "wolves": "wolf", "wives": "wife", "calves": "calf", "scarves": "scarf"},
    **{"potatoes": "potato", "tomatoes": "tomato", "mangoes": "mango", "heroes": "hero", "buffaloes": "buffalo"},
    **{"firemen": "fireman", "policemen": "policeman", "snowmen": "snowman", "grandchildren": "grandchild"},
    **{"vertices": "vertex", "matrices": "matrix", "indices": "index", "axes": "axis", "bonuses": "bonus"},
    **{"quizzes": "quiz", "bacteria": "bacterium", "criteria": "criterion", "cacti": "cactus"},
    **{name: name for name in ("cattle", "deer", "fish", "fruit", "money", "sheep", "shrimp")},
    # German.
    **{"äpfel": "apfel", "birnen": "birne", "bücher": "buch", "eier": "ei", "kinder": "kind", "jungen": "junge"},
    **{"mädchen": "mädchen", "schüler": "schüler", "stifte": "stift", "seiten": "seite", "personen": "person"},
    **{"leute": "person", "menschen": "mensch", "stück": "stück", "bälle": "ball", "blumen": "blume", "bäume": "baum"},
    **{"katzen": "katze", "hunde": "hund", "karten": "karte", "tische": "tisch", "stühle": "stuhl"},
    **{"murmeln": "murmel", "flaschen": "flasche", "kekse": "keks", "punkte": "punkt", "häuser": "haus"},
    # Spanish and French.
    **{"flores": "flor", "árboles": "árbol", "lápices": "lápiz", "gâteaux": "gâteau", "œufs": "œuf", "arbres": "arbre"},
}


def _plural(singular: str) -> str:
    if re.search(r"[^aeiou]y$", singular):
        return f"{singular[:-1]}ies"
    return singular + ("es" if re.search(r"(?:[sxz]|ch|sh)$", singular) else "s")


_BY_PLURAL = {_plural(singular): singular for singular in _REGULAR.split()} | _IRREGULAR
_SINGULARS = frozenset(_BY_PLURAL.values())
_ADJECTIVE_WORDS = (
    "big black blue brown different distinct fresh full green grey large little long new old orange pink possible "
    "purple red short small tall valid white whole yellow young"
)
_ADJECTIVES = frozenset(_ADJECTIVE_WORDS.split())


def noun(text: str, *, singular: bool = False) -> str | None:
    """Return the singular of a plural noun of the list, in any case, after an adjective of another list or none.

    `singular`: take a noun in the singular too, as behind the number 1. Any other text is None.

    >>> [noun(text) for text in ("apples", "red apples", "Children", "dozens", "plus", "apple")]
    ['apple', 'red apple', 'child', None, None, None]
    """
    adjective, _, last = text.lower().rpartition(" ")
    if adjective and adjective not in _ADJECTIVES:
        return None
    thing = _BY_PLURAL.get(last) or (last if singular and last in _SINGULARS else None)
    return f"{adjective} {thing}".strip() if thing else None


_LEADING = (
    "a actually all also amount an and answer are area average be been believe correct cost costs difference distance "
    "done equal equals exactly final finally find finds gave get gets give gives got had has have he hence here his i "
    "in is it its just leaves left length made make makes must my need needed needs now number obtain of only our pays "
    "precisely price probability product required result results she should simply so solution sold spends spent sum "
    "take takes that the their then there therefore these they think this those thus to total totals value was we were "
    "which will would you"
)
LEADING_WORDS = frozenset(_LEADING.split())
"""Words that may stand between the start of a statement and its number or box, in any order."""
_WITH_OF = frozenset(
    ("amount", "answer", "area", "cost", "distance", "length", "price", "result", "solution", "total", "value")
)
"""Words whose `of 42` is 42: the sum of 42 is not."""

SCALES = {
    **{"hundred": 2, "thousand": 3, "million": 6, "billion": 9, "trillion": 12},
    **{"tausend": 3, "millionen": 6, "milliarde": 9, "milliarden": 9, "milliard": 9, "milliards": 9, "millions": 6},
    **{"百": 2, "千": 3, "万": 4, "萬": 4, "亿": 8, "億": 8},
}
"""Words that multiply the number before them: powers of ten. A dozen is none of them, and so no number here."""

_CLOSING = (
    r"in (?:total|all|the end)|total|altogether|overall|left(?: over)?|remaining|each|exactly"
    r"|done|now|here|i (?:think|believe)"
    r"|is (?:the|my|our) (?:(?:final|correct) )?(?:answer|result|solution)"
    r"|of (?:it|them|these|those|this|that|(?:the|a|an) (?P<thing>[^\W\d_]+))"
)
_CLOSING_WORDS = re.compile(rf"[\s,]+(?:{_CLOSING})\s*$", re.IGNORECASE)

DENIAL = re.compile(
    r"\b(?:not|no|never|neither|nor|wrong|cannot|incorrect|false|except|unlikely|doubt|untrue|hardly|unless"
    r"|(?:is|was|are|do|does|did|ca|wo|would|could|should)nt)\b|n't\b|n\N{RIGHT SINGLE QUOTATION MARK}t\b",
    re.IGNORECASE,
)
"""Words by which a line takes back what it says."""


def leads(text: str) -> bool:
    """Return whether a text holds nothing but words that may lead to an answer, and their punctuation.

    >>> leads("So the final answer is:"), leads("less than"), leads("- ")
    (True, False, False)
    >>> leads("the total of"), leads("the sum of"), leads("I get"), leads("i")
    (True, False, True, False)
    """
    words = re.findall(r"\w+", text.lower()) if re.fullmatch(r"[\w\s.,:;!*\"()]*", text) else [""]
    if not LEADING_WORDS.issuperset(words) or (words and len(words[-1]) == 1):
        return False  # a letter right in front of a number is a factor
    return "of" not in words or all(word in _WITH_OF for word, following in pairwise(["", *words]) if following == "of")


def without_closing(text: str) -> str:
    """Return a text without the words at its end that say nothing of the value of what stands before them.

    >>> without_closing(" apples in total"), without_closing(" of the cake"), without_closing(" of the millions")
    (' apples', '', ' of the millions')
    """
    match = _CLOSING_WORDS.search(text)
    if not match or (match["thing"] and noun(match["thing"], singular=True) is None):
        return text
    return text[: match.start()]
