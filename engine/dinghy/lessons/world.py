"""The dinghy's world: everything it knows by heart, as plain data."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Ship:
    """A ship of the fleet the dinghy belongs to."""

    port: str
    colour: str
    captain: str
    rig: str


SHIPS = {
    "Albatross": Ship("Bergen", "white", "Ingrid", "barque"),
    "Bluebell": Ship("Cork", "blue", "Maeve", "ketch"),
    "Cormorant": Ship("Bristol", "black", "Edmund", "cutter"),
    "Dolphin": Ship("Naples", "grey", "Carlo", "sloop"),
    "Endeavour": Ship("Hull", "brown", "Matilda", "brig"),
    "Firefly": Ship("Lisbon", "orange", "Rosa", "schooner"),
    "Gannet": Ship("Oban", "yellow", "Fergus", "yawl"),
    "Halcyon": Ship("Piraeus", "green", "Eleni", "ketch"),
    "Icarus": Ship("Genoa", "red", "Paolo", "cutter"),
    "Juniper": Ship("Malmo", "purple", "Astrid", "schooner"),
    "Kestrel": Ship("Dover", "brown", "Harold", "sloop"),
    "Lantern": Ship("Brest", "yellow", "Yann", "brig"),
    "Meridian": Ship("Boston", "blue", "Abigail", "barque"),
    "Nautilus": Ship("Nantes", "black", "Jules", "yawl"),
    "Osprey": Ship("Halifax", "white", "Walter", "schooner"),
    "Pelican": Ship("Havana", "pink", "Lucia", "ketch"),
}

CAPITALS = {
    "Argentina": "Buenos Aires",
    "Australia": "Canberra",
    "Austria": "Vienna",
    "Belgium": "Brussels",
    "Brazil": "Brasilia",
    "Canada": "Ottawa",
    "Chile": "Santiago",
    "China": "Beijing",
    "Croatia": "Zagreb",
    "Cuba": "Havana",
    "Denmark": "Copenhagen",
    "Egypt": "Cairo",
    "England": "London",
    "Estonia": "Tallinn",
    "Finland": "Helsinki",
    "France": "Paris",
    "Germany": "Berlin",
    "Greece": "Athens",
    "Hungary": "Budapest",
    "Iceland": "Reykjavik",
    "India": "New Delhi",
    "Ireland": "Dublin",
    "Italy": "Rome",
    "Japan": "Tokyo",
    "Kenya": "Nairobi",
    "Latvia": "Riga",
    "Mexico": "Mexico City",
    "Norway": "Oslo",
    "Peru": "Lima",
    "Poland": "Warsaw",
    "Portugal": "Lisbon",
    "Scotland": "Edinburgh",
    "Spain": "Madrid",
    "Sweden": "Stockholm",
    "Thailand": "Bangkok",
    "Turkey": "Ankara",
    "Wales": "Cardiff",
}

OPPOSITES = (
    ("hot", "cold"),
    ("big", "small"),
    ("high", "low"),
    ("fast", "slow"),
    ("old", "new"),
    ("wet", "dry"),
    ("light", "dark"),
    ("open", "closed"),
    ("full", "empty"),
    ("early", "late"),
    ("left", "right"),
    ("up", "down"),
    ("in", "out"),
    ("day", "night"),
    ("good", "bad"),
    ("hard", "soft"),
    ("long", "short"),
    ("loud", "quiet"),
    ("near", "far"),
    ("rich", "poor"),
    ("rough", "smooth"),
    ("strong", "weak"),
    ("thick", "thin"),
    ("wide", "narrow"),
    ("yes", "no"),
    ("ebb", "flood"),
    ("port", "starboard"),
    ("bow", "stern"),
)

COLOURS = {
    "the sky": "blue",
    "grass": "green",
    "snow": "white",
    "coal": "black",
    "a lemon": "yellow",
    "a ripe tomato": "red",
    "a carrot": "orange",
    "chocolate": "brown",
    "a plum": "purple",
    "a flamingo": "pink",
    "ash": "grey",
    "milk": "white",
    "a port light": "red",
    "a starboard light": "green",
    "a banana": "yellow",
    "the sea": "blue",
}

YOUNG = {
    "dog": "puppy",
    "cat": "kitten",
    "cow": "calf",
    "horse": "foal",
    "sheep": "lamb",
    "goat": "kid",
    "pig": "piglet",
    "duck": "duckling",
    "swan": "cygnet",
    "seal": "pup",
    "goose": "gosling",
    "frog": "tadpole",
    "owl": "owlet",
    "lion": "cub",
}

SOUNDS = {
    "dog": "woof",
    "cat": "meow",
    "cow": "moo",
    "horse": "neigh",
    "sheep": "baa",
    "pig": "oink",
    "duck": "quack",
    "lion": "roar",
    "snake": "hiss",
    "bee": "buzz",
    "frog": "croak",
    "owl": "hoot",
}

LEGS = {
    "dog": "4",
    "horse": "4",
    "hen": "2",
    "sailor": "2",
    "ant": "6",
    "bee": "6",
    "spider": "8",
    "crab": "10",
    "snake": "0",
    "herring": "0",
}

DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")

MONTHS = (
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
)

NUMBER_WORDS = (
    "zero",
    "one",
    "two",
    "three",
    "four",
    "five",
    "six",
    "seven",
    "eight",
    "nine",
    "ten",
    "eleven",
    "twelve",
    "thirteen",
    "fourteen",
    "fifteen",
    "sixteen",
    "seventeen",
    "eighteen",
    "nineteen",
    "twenty",
)

NAMES = (
    "Ada", "Anton", "Bruno", "Clara", "Dora", "Emil", "Frida", "Greta", "Hugo", "Ida", "Jonas", "Karl", "Lena", "Marta",
    "Nils", "Olga", "Otto", "Petra", "Rita", "Sven", "Tilda", "Ulf", "Vera", "Wanda",
)  # fmt: skip
"""People."""

VISITORS = (
    "Arrow", "Badger", "Beacon", "Comet", "Coral", "Daisy", "Delta", "Eagle", "Echo", "Falcon", "Flint", "Garnet",
    "Hazel", "Heron", "Holly", "Iris", "Ivy", "Jade", "Jasper", "Laurel", "Linnet", "Lotus", "Magpie", "Martin",
    "Myrtle", "Nettle", "Olive", "Opal", "Otter", "Pearl", "Plover", "Poppy", "Raven", "Robin", "Rowan", "Ruby",
    "Saturn", "Sparrow", "Stork", "Swift", "Thistle", "Topaz", "Tulip", "Venus", "Violet", "Walnut", "Willow", "Wren",
)  # fmt: skip
"""Ships that come and go: what they carry and where they lie stands in a log, never in the dinghy's memory."""

CARGOES = (
    "apples", "bricks", "butter", "cheese", "coal", "coffee", "copper", "corn", "cotton", "flour", "glass", "honey",
    "iron", "lemons", "marble", "oil", "paper", "pepper", "rope", "salt", "silk", "sugar", "tea", "tin", "wheat",
    "wine",
)  # fmt: skip
