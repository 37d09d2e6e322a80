"""English inflection, both ways: which words a form may come from, and what form a word takes in the place of another.

Regular spelling and tables of irregular words, our own; lists of exceptions may be added (WordNet's ``*.exc``). What cannot
be told for certain is not guessed: "walked" is a past or a participle, so nothing certain can be said of "go" in its place.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Literal, get_args

Pos = Literal["n", "v", "a", "r"]
"""Noun, verb, adjective, adverb."""
POS: tuple[Pos, ...] = get_args(Pos)

Form = Literal["base", "plural", "third", "ing", "past", "participle", "comparative", "superlative"]
"""What a form is of its word; `base` is also the singular of a noun, `third` is "walks"."""

Exceptions = Mapping[Pos, Mapping[str, tuple[str, ...]]]
"""Part of speech -> irregular form -> the words it comes from."""

RULES: Mapping[Pos, tuple[tuple[str, str], ...]] = {
    "n": (
        ("s", ""),
        ("ses", "s"),
        ("xes", "x"),
        ("zes", "z"),
        ("ches", "ch"),
        ("shes", "sh"),
        ("men", "man"),
        ("ies", "y"),
    ),
    "v": (("s", ""), ("ies", "y"), ("es", "e"), ("es", ""), ("ed", "e"), ("ed", ""), ("ing", "e"), ("ing", "")),
    "a": (("er", ""), ("est", ""), ("er", "e"), ("est", "e")),
    "r": (),
}
"""WordNet's rules of detachment (manual page morphy(7)): ending of a form -> ending of its word."""

_FUNCTION = """
a an the this that these those some any no not none each every either neither both all half such other another i me my
mine we us our ours you your yours he him his she her hers it its they them their theirs one ones who whom whose which
what where when why how there here am is are was were be been being have has had having do does did doing done can
could will would shall should may might must ought in on at by to of for from with without within into onto out off
over under up down as than about above after before behind below beneath beside between beyond during except inside
like outside per round since through till toward towards until upon via and or but nor so yet if then else because
although though while unless whether very too also just only even still again ever now s t d m re ve ll
"""
FUNCTION_WORDS = frozenset(_FUNCTION.split())
"""Words that hold a sentence together; WordNet knows many of them only as nouns ("in": indium, "he": helium)."""

# Base, past, participle; also verbs that exception lists know by a rarer form only ("learnt").
_VERBS = """
arise arose arisen|awake awoke awoken|bear bore borne|beat beat beaten|become became become|befall befell befallen
begin began begun|behold beheld beheld|bend bent bent|bet bet bet|bind bound bound|bite bit bitten|bleed bled bled
blow blew blown|break broke broken|breed bred bred|bring brought brought|broadcast broadcast broadcast|build built built
burst burst burst|buy bought bought|cast cast cast|catch caught caught|choose chose chosen|cling clung clung
come came come|cost cost cost|creep crept crept|cut cut cut|deal dealt dealt|dig dug dug|do did done|draw drew drawn
drink drank drunk|drive drove driven|eat ate eaten|fall fell fallen|feed fed fed|feel felt felt|fight fought fought
find found found|flee fled fled|fling flung flung|fly flew flown|forbid forbade forbidden|forecast forecast forecast
forget forgot forgotten|forgive forgave forgiven|forsake forsook forsaken|freeze froze frozen|get got got|give gave given
go went gone|grind ground ground|grow grew grown|hang hung hung|have had had|hear heard heard|hide hid hidden|hit hit hit
hold held held|hurt hurt hurt|keep kept kept|know knew known|lay laid laid|lead led led|leave left left|lend lent lent
let let let|light lit lit|lose lost lost|make made made|mean meant meant|meet met met|pay paid paid|put put put
quit quit quit|read read read|ride rode ridden|ring rang rung|rise rose risen|run ran run|say said said|see saw seen
seek sought sought|sell sold sold|send sent sent|set set set|shake shook shaken|shed shed shed|shoot shot shot
shrink shrank shrunk|shut shut shut|sing sang sung|sink sank sunk|sit sat sat|sleep slept slept|slide slid slid
sling slung slung|slit slit slit|speak spoke spoken|spend spent spent|spin spun spun|split split split
spread spread spread|spring sprang sprung|stand stood stood|steal stole stolen|stick stuck stuck|sting stung stung
stride strode stridden|strike struck struck|string strung strung|strive strove striven|swear swore sworn
sweep swept swept|swim swam swum|swing swung swung|take took taken|teach taught taught|tear tore torn|tell told told
think thought thought|throw threw thrown|thrust thrust thrust|understand understood understood|wake woke woken
wear wore worn|weave wove woven|weep wept wept|win won won|wind wound wound|wring wrung wrung|write wrote written
burn burned burned|dream dreamed dreamed|lean leaned leaned|leap leaped leaped|learn learned learned
smell smelled smelled|spell spelled spelled|spill spilled spilled|spoil spoiled spoiled|kneel knelt knelt
prove proved proved|show showed shown|sew sewed sewn|sow sowed sown|swell swelled swollen|dwell dwelt dwelt
"""

_PREFIXES = ("over", "under", "out", "re", "un", "fore", "mis", "with", "up", "off", "inter")
_UNCERTAIN_VERBS = frozenset(("lie", "be", "bid", "shine", "fit", "wet", "wed", "sweat", "relay", "bust", "rid", "shear"))
_BE: Mapping[str, frozenset[Form]] = {
    "am": frozenset(("base",)),
    "are": frozenset(("base",)),
    "is": frozenset(("third",)),
    "was": frozenset(("past",)),
    "were": frozenset(("past",)),
    "been": frozenset(("participle",)),
    "being": frozenset(("ing",)),
}

_PLURALS = """
child children|foot feet|tooth teeth|goose geese|mouse mice|louse lice|ox oxen|brother brothers|cow cows|penny pennies
die dice|criterion criteria|phenomenon phenomena|bacterium bacteria|datum data|medium media|curriculum curricula
stratum strata|cactus cacti|nucleus nuclei|stimulus stimuli|fungus fungi|radius radii|alumnus alumni|focus focuses
formula formulas|index indexes|appendix appendices|matrix matrices|vertex vertices|alga algae|larva larvae|vertebra vertebrae
virus viruses|octopus octopuses|stadium stadiums|museum museums|forum forums|album albums|campus campuses|bus buses
gas gases|lens lenses|genius geniuses|sheep sheep|deer deer|fish fish|series series|species species|aircraft aircraft
spacecraft spacecraft|swine swine|offspring offspring|salmon salmon|trout trout|bison bison|wife wives|knife knives
life lives|wolf wolves|leaf leaves|half halves|shelf shelves|thief thieves|loaf loaves|calf calves|elf elves|self selves
potato potatoes|tomato tomatoes|hero heroes|echo echoes|quiz quizzes|roof roofs|crisis crises|analysis analyses
thesis theses|basis bases|oasis oases|hypothesis hypotheses|diagnosis diagnoses|axis axes|dwarf dwarfs|staff staffs
"""

_DEGREES = """
good better best|bad worse worst|far farther farthest|old older oldest|many more most|much more most
"""

_NOT_MEN = frozenset(
    ("human", "german", "roman", "shaman", "talisman", "ottoman", "norman", "caiman", "hetman", "mussulman")
)
_HARD_CH = ("stomach", "epoch", "loch", "eunuch", "monarch", "patriarch", "matriarch", "oligarch", "hierarch")
_KEEP_E = frozenset(("singe", "tinge", "binge", "swinge", "twinge", "whinge", "be"))
_GRADED = """
able ample apt bald bare black bland bleak blunt bold brave brief bright brisk brittle broad calm cheap clean clear
clever close coarse cold cool crisp crude cruel curt damp dark deaf dear deep dense dull dumb faint fair fast feeble
fierce fine firm fond frail frank fresh full gentle grand grave great green gross hard harsh high huge humble keen
kind lame large late lean light long loose loud low lush mean meek mellow mild moist narrow near neat new nice nimble
noble odd old pale plain plump poor posh proud pure quaint quick quiet rare rash raw rich ripe rough rude safe sane
scarce shallow sharp short shrewd shrill sick simple sleek slender slick slight slow small smart smooth soft sore
sound sour sparse square stable stale stark steep stern stiff still stout straight strange strict strong subtle sure
sweet swift tall tame taut tense thick tight tough true vague vain vast vile warm weak weird white wide wild wise
young
"""
_WITH_DEGREES = frozenset(_GRADED.split())  # what is in exception lists ("big", "happy") needs no mention

_LATE_STRESS = {word: word + word[-1] for word in ("begin", "forget", "forbid", "refer", "prefer", "admit", "permit")}
_INVARIANT = ("set", "put", "cast", "cut")  # verbs that end so have no -ed, and exception lists do not say it
_MASSES = """
advice baggage bread butter cash clothing courage damage dust education electricity employment equipment evidence food
furniture garbage gold hardware health help homework housework housing information intelligence jewelry jewellery
knowledge laughter litter luck luggage machinery mail milk money mud music oxygen patience pollution poverty progress
research rice rubbish mankind humankind womankind safety salt sand scenery silver snow software sugar thunder traffic
transportation trash travel violence water wealth weather wisdom wood wool
"""
_MASS = frozenset(_MASSES.split())


def _table(text: str) -> dict[str, tuple[str, ...]]:
    rows = (row.split() for row in re.split(r"[|\n]", text.strip()))
    return {base: tuple(rest) for base, *rest in rows}


VERBS = _table(_VERBS)
"""Verb -> past, participle; also of regular verbs that exception lists know by a rarer form only."""
PLURALS = _table(_PLURALS)
"""Noun -> plural, likewise."""
DEGREES = _table(_DEGREES)
"""Adjective -> comparative, superlative."""


def respellings(words: Iterable[tuple[str, Pos]]) -> Exceptions:
    """Regular forms that `RULES` do not lead back: "stopped", "tried", "happier"; for vocabularies without a list."""
    found: dict[Pos, dict[str, tuple[str, ...]]] = {pos: {} for pos in POS}
    for word, pos in words:
        stem = word[:-1] + "i" if re.search("[^aeiou]y$", word) else _doubled(word)
        if pos == "a" and stem != word and word not in VERBS:  # "shut" has no degrees
            found["a"] |= {stem + "er": (word,), stem + "est": (word,)}
        if pos == "v" and stem != word and word not in VERBS:
            found["v"][stem + "ed"] = (word,)
        if pos == "v" and (double := _LATE_STRESS.get(word, _doubled(word))) != word:
            found["v"][double + "ing"] = (word,)
    return found


class Morphology:
    """English inflection with a given vocabulary.

    Args:
        exceptions: irregular forms beside those of the tables above.
        known: whether (word, part of speech) is in the vocabulary; words and forms are lower case.
    """

    def __init__(self, exceptions: Exceptions, known: Callable[[str, Pos], bool]) -> None:
        self._known = known
        self._bases: dict[Pos, dict[str, tuple[str, ...]]] = {pos: dict(exceptions.get(pos, {})) for pos in POS}
        self._listed: dict[Pos, dict[str, tuple[str, ...]]] = {pos: _reversed(self._bases[pos]) for pos in POS}
        self._add("n", PLURALS)
        self._add("v", VERBS)
        self._add("a", DEGREES)
        self._add("v", {"be": tuple(_BE), "have": ("has",)})

    def _add(self, pos: Pos, table: Mapping[str, Iterable[str]]) -> None:
        bases = self._bases[pos]
        for base, forms in table.items():
            for form in forms:
                if form != base and base not in bases.get(form, ()):
                    bases[form] = (*bases.get(form, ()), base)

    def lemmas(self, word: str, pos: Pos) -> list[str]:
        """The words of the vocabulary that a form may come from: itself, then by exceptions, else by `RULES`."""
        found = [word] if self._known(word, pos) else []
        if word in self._bases[pos]:
            bases = self._bases[pos][word]
            bases = bases[:1] if bases[0] == word else bases  # as `wn` does: "feed" is listed as feed and as a form of fee
            found += [base for base in bases if self._known(base, pos)]
        elif len(word) > 2 and not (pos == "n" and word.endswith("ss")):  # "be" is not a form of "b", "boss" none of "bos"
            detached = (word.removesuffix(end) + new for end, new in RULES[pos] if word.endswith(end))
            found += [base for base in detached if len(base) > 1 and self._known(base, pos)]
        return list(dict.fromkeys(found))

    def inflect(self, lemma: str, like: str, pos: Pos, base: str) -> str | None:
        """`lemma` in the form that `like` has of `base`: ("walk", "ran", "v", "run") -> "walked"; none where that is not
        certain."""
        if pos == "n" and _has_own_number(base) != _has_own_number(lemma):
            return None
        made = {self.form(lemma, pos, form) for form in self.forms(like, base, pos)}
        return made.pop() if len(made) == 1 else None

    def forms(self, word: str, base: str, pos: Pos) -> frozenset[Form]:
        """What `word` may be of `base`; all possibilities, so that "put" is a base, a past and a participle."""
        if pos == "n":
            return _some(("base", word == base), ("plural", word != base or self.form(base, pos, "plural") == base))
        if pos == "v":
            return self._verb_forms(word, base)
        if word == base:
            return frozenset(("base",))
        return frozenset(("superlative",)) if word.endswith("st") else frozenset(("comparative",))

    def _verb_forms(self, word: str, base: str) -> frozenset[Form]:
        if base == "be" and word in _BE:
            return _BE[word]
        past, participle = self._pasts(base) or (None, None)
        found = _some(("base", word == base), ("past", word == past), ("participle", word == participle))
        if found:
            return found
        if word.endswith("ing"):
            return frozenset(("ing",))
        return frozenset(("third",)) if word.endswith("s") else frozenset(("past", "participle"))

    def form(self, lemma: str, pos: Pos, form: Form) -> str | None:
        """`lemma` in a given form; none where that is not certain, or where the form does not belong to `pos`.

        A form that does not lead back to a lemma of the vocabulary is not certain either.
        """
        if form == "base":
            return lemma
        if not re.fullmatch("[A-Za-z]{2,}", lemma):  # "T-shirt", "o'clock", "24/7"
            return None
        made = self._made(lemma, pos, form)
        lead_back = made is None or not self._known(lemma.lower(), pos) or lemma.lower() in self.lemmas(made.lower(), pos)
        return made if lead_back else None

    def _made(self, lemma: str, pos: Pos, form: Form) -> str | None:
        if pos == "n":
            return self._plural(lemma) if form == "plural" else None
        if pos in ("a", "r"):
            return self._degree(lemma, pos, form) if form in ("comparative", "superlative") else None
        if form in ("past", "participle"):
            both = self._pasts(lemma)
            return both[form == "participle"] if both else None
        return self._third(lemma) if form == "third" else self._ing(lemma) if form == "ing" else None

    def _plural(self, noun: str) -> str | None:
        if noun in PLURALS:
            return PLURALS[noun][0]
        if noun.endswith("man") and noun.lower() not in _NOT_MEN:
            return noun[:-3] + "men"
        if noun in _MASS or noun.endswith(("ness", "ese", "ics")):
            return None
        if listed := self._listed["n"].get(noun):
            if noun in listed and len(listed) > 1:  # "genus" is listed as its own plural, beside "genera"
                return None
            return _only(form for form in listed if form.endswith("s") and form.startswith(noun[:-2]))
        if noun.endswith("s") and not noun.endswith(("ss", "us")):
            return None
        return _with_s(noun)

    def _third(self, verb: str) -> str | None:
        if verb in ("have", "be"):
            return {"have": "has", "be": "is"}[verb]
        if listed := [form for form in self._listed["v"].get(verb, ()) if form.endswith("s")]:
            return _only(listed)
        if re.search("[^aeiou]o$", verb):
            return verb + "es"
        return None if verb.endswith("s") and not verb.endswith(("ss", "us")) else _with_s(verb)

    def _ing(self, verb: str) -> str | None:
        if listed := [form for form in self._listed["v"].get(verb, ()) if form.endswith("ing") and form != verb]:
            return _only(listed)
        if verb in _KEEP_E or verb.endswith(("ee", "oe", "ye")):
            return verb + "ing"
        if verb.endswith("ie"):
            return verb[:-2] + "ying"
        if verb.endswith("c"):
            return None
        return (verb[:-1] if verb.endswith("e") else _doubled(verb)) + "ing"

    def _pasts(self, verb: str) -> tuple[str, str] | None:
        """Past and participle of a verb, or none."""
        if verb in VERBS:
            return VERBS[verb][0], VERBS[verb][1]
        listed = [form for form in self._listed["v"].get(verb, ()) if not form.endswith(("ing", "s"))]
        for prefix in _PREFIXES:
            rest = verb.removeprefix(prefix)
            if rest == verb or rest not in VERBS:
                continue
            forms = (prefix + VERBS[rest][0], prefix + VERBS[rest][1])
            if set(forms) - {verb} <= set(listed) and not (listed and set(forms) == {verb}):
                return forms
        if verb in _UNCERTAIN_VERBS or (verb.endswith((*_INVARIANT, "c")) and not listed):
            return None
        if listed:
            one = _only(listed)
            return (one, one) if one is not None and one.endswith("ed") else None
        if verb.endswith("e"):
            regular = verb + "d"
        else:
            regular = verb[:-1] + "ied" if re.search("[^aeiou]y$", verb) else _doubled(verb) + "ed"
        return regular, regular

    def _degree(self, word: str, pos: Pos, form: Form) -> str | None:
        if word in DEGREES and (pos == "a" or word not in ("good", "bad", "old")):
            return DEGREES[word][form == "superlative"]
        end = "r" if form == "comparative" else "st"
        listed = [other for other in self._listed[pos].get(word, ()) if other.endswith(end)]
        if pos == "r":  # "quicklier" is none, and which adverbs are like "hard" no rule tells
            return _only(listed)
        stem = word[:-1] + "i" if re.search("[^aeiou]y$", word) else _doubled(word)
        regular = word + end if word.endswith("e") else stem + "e" + end
        if listed:
            return regular if regular in listed else None
        return regular if word in _WITH_DEGREES else None


def _some(*cases: tuple[Form, bool]) -> frozenset[Form]:
    return frozenset(form for form, holds in cases if holds)


def _only(forms: Iterable[str]) -> str | None:
    """The one form of which there is one."""
    found = set(forms)
    return found.pop() if len(found) == 1 else None


def _reversed(bases: Mapping[str, tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
    found: dict[str, tuple[str, ...]] = {}
    for form, words in bases.items():
        for word in words:
            found[word] = (*found.get(word, ()), form)
    return found


def _has_own_number(noun: str) -> bool:
    """Whether a noun looks like a plural itself: "trousers", "news". Only such nouns stand in for each other."""
    return noun.endswith("s") and not noun.endswith(("ss", "us", "is")) and noun not in PLURALS


def _with_s(word: str) -> str | None:
    if word.endswith("ch"):
        return word + ("s" if word.endswith(_HARD_CH) else "es")
    if word.endswith(("s", "x", "sh", "tz", "zz")):
        return word + "es"
    if word.endswith("z"):
        return None
    return word[:-1] + "ies" if re.search("[^aeiou]y$", word) and word.islower() else word + "s"


def _one_syllable(word: str) -> bool:
    sounded = re.sub("y(?=[aeiou])", "j", word.replace("qu", "q"))  # "layer" has two
    return len(re.findall("[aeiouy]+", re.sub("(?<=[^aeiouy])e$", "", sounded))) == 1


def _doubled(word: str) -> str:
    """Like "stop" -> "stopp": one syllable that ends in one vowel and one consonant. Longer words are in exception lists."""
    short = _one_syllable(word) and re.search("(^|[^aeiou]|qu)[aeiou][bdfgklmnprtvz]$", word)
    return word + word[-1] if short else word
