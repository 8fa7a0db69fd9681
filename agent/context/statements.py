"""What a sentence says: its words, its kinds, the values in it, and how much it tells by itself.

Rules of language alone, for some fifteen languages; a sentence of another one has words and values
all the same. What a sentence is worth within a conversation is agent/context/extract.py's.
"""

import re
from collections.abc import Iterable, Mapping, Set
from functools import lru_cache
from typing import Literal, NamedTuple, cast

Kind = Literal[
    "instruction",
    "preference",
    "decision",
    "plan",
    "change",
    "value",
    "question",
    "courtesy",
]
"""instruction: holds from now on; preference: what somebody likes, or cannot have; decision: what
was chosen or agreed; plan: what somebody is about to do, or has arranged; change: something is no
longer as it was."""


class Value(NamedTuple):
    """A number, an amount, a date, a time or a version in a sentence.

    Attributes:
        text: As it is written.
        unit: "date", "time", "%", a currency or a unit of measure; "" for a bare number.
        subject: The content words of the sentence beside it.
    """

    text: str
    unit: str
    subject: frozenset[str]


# In small letters. Cues stand between bars; those of scripts without spaces are looked for within
# the text, the others word by word.
_CUES = {
    "instruction": """
        always|from now on|going forward|in future|for future|every time|whenever|make sure|
        by default|remember to|remember that|keep in mind|please use|please don't|please do not|
        do not use|don't use|stop using|when i ask|each time|at all times|unless i|
        your answers|your replies|your responses|immer|niemals|
        ab jetzt|ab sofort|künftig|in zukunft|jedes mal|merk dir|denk daran|bitte nur|achte darauf|
        standardmäßig|toujours|jamais|désormais|dorénavant|à partir de maintenant|chaque fois|
        à chaque fois|assure-toi|n'oublie pas|siempre|nunca|de ahora en adelante|cada vez|
        a partir de ahora|asegúrate|recuerda que|por favor usa|sempre|d'ora in poi|ogni volta|
        ricordati|assicurati|a partir de agora|daqui em diante|toda vez|lembre-se|certifique-se|
        altijd|nooit|voortaan|vanaf nu|elke keer|zorg dat|zawsze|nigdy|od teraz|za każdym razem|
        pamiętaj|всегда|никогда|отныне|впредь|каждый раз|запомни|с этого момента|her zaman|asla|
        bundan sonra|her seferinde|alltid|aldrig|hädanefter|från och med nu|varje gång|aina|
        älä koskaan|tästä lähtien|joka kerta|nie wieder|nie mehr|ab heute|bitte immer|never""",
    "preference": """
        i prefer|i'd prefer|i would prefer|i love|i hate|i dislike|i don't like|
        i can't stand|i'd rather|i would rather|my favorite|my favourite|allergic|vegetarian|vegan|
        intolerant|i'm not a fan|i'm used to|prefer|ich mag|ich bevorzuge|ich hasse|
        am liebsten|mir ist lieber|allergisch|vegetarisch|lieblings|je préfère|j'aime|je déteste|
        j'adore|allergique|végétarien|prefiero|me gusta|me encanta|odio|no soporto|alérgico|
        alérgica|vegetariano|vegetariana|preferisco|mi piace|adoro|prefiro|gosto de|eu gosto|
        ik hou van|ik heb liever|wolę|lubię|предпочитаю|люблю|нравится|ненавижу|аллергия|tercih|
        severim|sevmem|alerjim|jag föredrar|jag gillar|tykkään|pidän|inhoan|lieber""",
    "decision": """
        decided|we agreed|agreed to|
        settled on|going with|we'll go with|let's go with|i'll go with|went with|
        chose|chosen|picked|approved|final decision|opted for|signed off|entschieden|beschlossen|
        einigen|vereinbart|nehmen wir|décidé|choisi|convenu|decidido|decidimos|acordado|elegimos|
        elegido|deciso|scelto|concordato|escolhi|combinado|besloten|afgesproken|gekozen|
        zdecydowałem|zdecydowaliśmy|ustalone|wybraliśmy|решил|
        решили|решила|договорились|выбрали|karar verdik|kararlaştırdık|seçtik|bestämt|bestämde|
        valde|päätin|päätimme|sovittu""",
    "plan": """
        i plan|i'm planning|planning to|we plan|i intend|scheduled|booked|confirmed|gebucht|
        bestätigt|réservé|confirmé|reservado|confirmado|prenotato|confermato|geboekt|deadline|
        due on|due by|appointment|meeting|next week|next month|tomorrow|by friday|by monday|
        ich werde|wir werden|ich plane|geplant|termin|frist|morgen|nächste woche|je vais|
        nous allons|prévu|rendez-vous|échéance|demain|voy a|vamos a|planeo|cita|plazo|mañana|farò|
        andrò|scadenza|appuntamento|domani|prazo|amanhã|ik ga|gepland|afspraak|zamierzam|planuję|
        jutro|собираюсь|планирую|срок|встреча|завтра|planlıyorum|randevu|yarın|jag ska|möte|
        imorgon|aion|tapaaminen|huomenna""",
    "change": """
        instead|no longer|anymore|changed|change of plans|moved to|postponed|
        rescheduled|cancelled|canceled|updated|actually|now it's|switched|replaced|increased to|
        reduced to|raised to|went up|went down|bumped|pushed back|brought forward|correction|
        i was wrong|statt|stattdessen|nicht mehr|verschoben|geändert|abgesagt|umgezogen|gewechselt|
        doch nicht|finalement|plus tard que|reporté|annulé|changé|au lieu|en vez|en lugar|ya no|
        cambiado|cambió|aplazado|cancelado|movido|invece|non più|spostato|annullato|cambiato|
        rinviato|em vez|não mais|mudou|mudei|adiado|in plaats|niet meer|verplaatst|gewijzigd|
        zamiast|już nie|przeniesione|zmienił|вместо|больше не|перенесли|перенесено|изменил|
        изменили|отменили|yerine|artık|ertelendi|değişti|iptal|istället|inte längre|flyttat|ändrat|
        sijaan|enää|siirretty|muuttui|peruttu""",
    "courtesy": """
        thanks|thank you|thx|hello|hey|great|perfect|awesome|sure|ok|okay|got it|sounds good|
        you're welcome|no problem|bye|cheers|danke|hallo|super|klasse|
        gerne|merci|bonjour|salut|d'accord|gracias|hola|vale|grazie|ciao|obrigado|obrigada|olá|
        dank je|bedankt|dzięki|dziękuję|cześć|спасибо|привет|хорошо|teşekkürler|merhaba|tack|hej|
        kiitos|of course|certainly|absolutely|i hope this helps|let me know|feel free|
        happy to help|hi|talk soon|take care|sorry about|sorry to hear|i apologize|see you|
        good morning|good evening|good night|have a nice|have a great|have a good|safe travels|
        my pleasure|appreciate|guten morgen|guten abend|gute nacht|schönen tag|bis bald|
        tut mir leid|bonne journée|à bientôt|désolé|buenos días|buenas noches|hasta luego|
        lo siento|buongiorno|a presto|bom dia|até logo|desculpe|до свидания|доброе утро|извините""",
}

_CUES_WITHIN = {
    "instruction": """
        总是|永远|以后|从现在起|从今以后|每次|记住|务必|不要再|一律|請|總是|今後|これから|いつも|必ず|毎回|絶対に|二度と|覚えて|常に|항상|
        앞으로|절대|매번|기억해|반드시""",
    "preference": """
        喜欢|喜歡|讨厌|更愿意|偏好|过敏|過敏|吃素|好き|嫌い|苦手|アレルギー|方がいい|좋아|싫어|선호|알레르기|채식""",
    "decision": """
        决定|決定|同意|选了|選了|确定|確定|就用|決め|選び|にします|결정|정했|합의|확정""",
    "plan": """
        打算|计划|計劃|将要|截止|预约|会议|明天|下周|下个月|予定|つもり|締め切り|会議|明日|来週|来月|確認しました|予約|예정|계획|마감|약속|회의|내일|다음주|예약""",
    "change": """
        改成|改为|改到|不再|取消|推迟|换成|变成|而不是|改期|変更|やめ|延期|代わりに|キャンセル|もう|になりました|대신|변경|바꿨|취소|연기|
        더이상""",
    "courtesy": """
        谢谢|你好|好的|不客气|謝謝|ありがとう|こんにちは|了解|わかりました|감사|고마워|안녕|네,|알겠""",
}

_MONTH_NAMES = """
    jan|feb|mar|apr|may|jun|jul|aug|sep|sept|oct|nov|dec|januar|februar|märz|mai|juni|juli|oktober|
    dezember|january|february|march|april|june|july|august|september|october|november|december|
    janvier|février|mars|avril|juin|juillet|août|septembre|octobre|novembre|décembre|enero|febrero|
    marzo|abril|mayo|junio|julio|agosto|septiembre|octubre|noviembre|diciembre|janeiro|fevereiro|
    março|maio|junho|julho|setembro|outubro|novembro|dezembro|gennaio|febbraio|aprile|maggio|
    giugno|luglio|settembre|ottobre|dicembre|maart|mei|augustus|januari|februari|maj|augusti|
    stycznia|lutego|marca|kwietnia|maja|czerwca|lipca|sierpnia|września|października|listopada|
    grudnia|января|февраля|марта|апреля|мая|июня|июля|августа|сентября|октября|ноября|декабря|ocak|
    şubat|mart|nisan|mayıs|haziran|temmuz|ağustos|eylül|ekim|kasım|aralık|tammikuuta|helmikuuta|
    maaliskuuta|huhtikuuta|toukokuuta|kesäkuuta|heinäkuuta|elokuuta|syyskuuta|lokakuuta|
    marraskuuta|joulukuuta"""

_EMPTY_WORDS = """
    a about after again all also am an and any are as at be because been before being but by can
    could d did do does doing don done during each few for from further get go going got had has
    have having he her here hers him his how i i'd i'll i'm i've if in into is isn't it it's its
    just ll let let's like m make may me might more most much must my need no not now of off on
    once one only or other our out over own please re really s same she should so some something
    such sure t than that that's the their them then there these they thing things think this
    those through to too under until up us use ve very want was way we we're well were what what's
    when where which while who why will with would you you're your yours yes able doesn't don't
    didn't can't couldn't aber alle als auch auf aus bei bin bis bist da damit dann das dass dein
    dem den der des die dir doch du durch ein eine einem einen einer eines er es für hab habe
    haben hat hatte ich ihm ihn ihr im ist ja kann kein keine können machen man mehr mein meine
    meinem meinen mich mir mit muss nach nicht noch nur oder ohne schon sehr sein sich sie sind
    soll um und uns unser von vor war weil wenn wer werden wie wir wird wo würde zu zum zur über
    au aux avec ce ces cette c'est dans de elle en est et eu il ils j'ai je la le les leur lui ma
    mais mes mon même ne nos notre nous ou où par pas peux plus pour qu que qui sa sans se ses si
    son sont sur ta te tes toi ton tu un une vos votre vous été être fait faire al algo como con
    cual cuando del el ella era esa ese eso esta este esto está estoy fue ha hay las lo los mi mis
    muy más o para pero por porque puedo ser sin soy su sus también tengo tiene una unas uno unos
    y ya yo él alla anche che chi ci come cui dal dei della delle di dove e ed gli ho io mia mio
    nel nella non per perché più questa questo sono sua suo ti tra è ao aos com dos ela ele em
    entre essa esse foi isso já mas meu minha muito na nas não os pela pelo sem seu são também tem
    tenho uma você à é aan bij dan dat dit door een haar heb hebben heeft het hij hoe ik kan maar
    met mij mijn naar niet nog om onze ook op tot u uit van voor wat wel wordt zal ze zich zijn zo
    ale bo być co czy dla gdzie jak jest już każdy mam mnie moje mój nie od po się są tak w z za
    że żeby а без более бы был была были в во вот все всё вы где да для до его ее если есть еще
    ещё же за и из или им их к как когда кто ли мне мой моя мы на надо нас не нет но о об он она
    они от по под при с со так также там то только ты у уже что чтобы это я ama ben bir bu çok
    daha diye gibi hem için ile ise ki mu olan olarak sen şu var veya yok att av det dig din där
    efter ett från för han har hon hur inte jag med men mig min mitt och på sig som så till ut vi
    vid är ei että hän jos joka kuin kun minä minun mutta myös niin nyt olen oli ovat sinä tai
    tämä vain voi"""

_SELF_TEXT = """
    i my mine me myself we our ours us ich mein meine meinem meinen meiner mir mich wir unser
    unsere unserem unseren uns je j mon ma mes moi nous notre nos yo mi mis mío mía nosotros
    nuestro nuestra nuestros mio mia miei mie noi nostro nostra eu meu minha meus minhas nós
    nosso nossa ik mijn wij onze ons mój moja moje mam mnie nasz nasza я мой моя мое моё мои
    мне меня мы наш наша нас нам ben benim bana beni biz bizim jag min mitt mina vi vår minä
    minun minulla meidän 저는 나는 제가 내가 제 우리 저희"""
"""Who uses them tells of themselves."""
_SELF_WITHIN = ("我", "私", "僕", "俺", "うち", "ผม", "ฉัน")
_ERROR_WORDS = (
    "rror|xception|ailed|FAILED|ailure|fatal:|raceback|panic:|enied|refused|imed out|annot "
    "|not found|ehlgeschlagen|Fehler|erreur|échec|fallo |ошибк|Ошибк|błąd|错误|失败|エラー"
    "|失敗|오류|실패"
)
"""Some lack their first letter, which may be a capital."""
_OUTCOME_WORDS = (
    "nfortunately|nable to|ould not|ouldn't|id not|idn't|ot enough|ot available|ot possible"
    "|uccessful|ixed|orks|ompleted|as been|ave been|onfirmed|ooked|assed|ommitted|s now|re now"
    "|found|reated|emoved|pdated|changed|suggests|turned out|root cause|leider|icht möglich"
    "|konnte|wurde|erledigt|fertig|funktioniert|gefunden|alheureusement|mpossible|terminé|trouvé"
    "|amentablemente|esafortunadamente|encontr|listo|urtroppo|trovato|fatto|nfelizmente|pronto"
    "|helaas|gelukt|iestety|gotowe|ожалению|е удалось|отово|айден|аправ|Maalesef|amamland|yvärr"
    "|klart|alitettavasti|almis|抱歉|无法|完成|找到|已经|できません|ました|죄송|할 수 없|완료"
)
"""How what came of something is told, well or badly."""
_UNITS = """
    $=usd dollars=usd dollar=usd bucks=usd usd=usd €=eur euro=eur euros=eur eur=eur £=gbp pounds=gbp
    gbp=gbp ¥=jpy yen=jpy 円=jpy 元=cny chf=chf ₹=inr ₽=rub ₩=krw ₺=try percent=% prozent=% pct=%
    kilos=kg miles=mi"""
"""Names of one unit: what is counted in them may be compared."""

_SPACELESS = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff"  # Thai, Lao, Burmese, Khmer
    "\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff"  # kana, Han
)
_QUOTES = "\u2013\u2014\u2018\u201a\u201c\u201d\u201e\u2026\u2022\u2192\u060c\u061f\u06d4\u0964"
_EDGES = "".join(filter(lambda sign: not sign.isalnum(), map(chr, range(0x21, 0xBF)))) + _QUOTES
_WORD = re.compile(r"\w+(?:[.,:'\u2019@/-]\w+)*")
_RUN = re.compile(f"[{_SPACELESS}]+|[^{_SPACELESS}]+")
_HAS_SPACELESS = re.compile(f"[{_SPACELESS}]")
_UNSPACED = re.compile(f"[{_SPACELESS}\uac00-\ud7af]")
_ERRORS = tuple(_ERROR_WORDS.split("|"))
_OUTCOMES = tuple(_OUTCOME_WORDS.split("|"))

_MONTHS = frozenset(re.findall(r"\w+", _MONTH_NAMES))
_MONTH = "|".join(sorted(_MONTHS, key=len, reverse=True))
_NUMBER = r"\d+(?:[.,'\u202f]\d+)*(?: \d{3}\b)*"
_SIGNS = "$\u20ac\u00a3\u00a5\u20b9\u20bd\u20a9\u20ba"
_CODES = frozenset({"USD", "EUR", "GBP", "CHF", "JPY", "CNY"})
# Matched where a digit is: a search for names of months would take a hundred times as long.
_VALUE = re.compile(
    r"(?P<date>\d{4}[-/.]\d{1,2}[-/.]\d{1,2}\b|\d{1,2}[./]\d{1,2}[./]\d{2,4}\b"
    r"|\d{1,2}(?:\.|st|nd|rd|th|er|\u00ba)?(?: (?:de|of))? "
    rf"(?:{_MONTH})\b\.?(?:,?(?: de)? \d{{4}}\b)?"
    r"|(?:\d{2,4}\u5e74)?\d{1,2}\u6708\d{1,2}[\u65e5\u53f7]"
    r"|(?:\d{4}\ub144 ?)?\d{1,2}\uc6d4 ?\d{1,2}\uc77c)"
    r"|(?P<time>\d{1,2}[:h]\d{2}(?::\d{2})?(?: ?[ap]\.?m\b\.?)?|\d{1,2} ?[ap]\.?m\b\.?"
    r"|\d{1,2} (?:uhr|uur|heures)\b|\d{1,2}[\u70b9\u6642\u65f6](?:\d{1,2}\u5206|\u534a)?)"
    r"|(?P<version>\d+(?:\.\d+){2,}\b)"
    rf"|(?P<number>{_NUMBER})(?:[ \u00a0-]?(?P<unit>%|[{_SIGNS}]|\w+[\u00b2\u00b3]?))?",
    re.IGNORECASE,
)
_DAY = re.compile(r"\d{1,2}(?:st|nd|rd|th)?\b(?:,? \d{4}\b)?")
_JUST_NUMBER = re.compile(_NUMBER)
_BEFORE = re.compile(rf"(?:[{_SIGNS}] ?|\b\w+\.? )$")
_UNIT_NAMES = dict(pair.split("=") for pair in _UNITS.split())
FUNCTION_WORDS = frozenset(_EMPTY_WORDS.split())
_WITHIN = {
    cast("Kind", kind): "".join(each.split()).split("|") for kind, each in _CUES_WITHIN.items()
}
_RUN_OF_SIGNS = re.compile("[0-9A-Za-z+/=_-]{24,}|[0-9a-f]{16,}")
_SMALL = bytes(
    ord(chr(byte).lower()) if byte >= 0x80 or chr(byte).isalnum() else 0x20 for byte in range(0x80)
) + bytes(range(0x80, 0x100))
_NO_SIGNS = bytes(byte for byte in range(256) if byte >= 0x80 or chr(byte).isalnum()) + b" .,?!'"
_PROSE_ENDS = frozenset(".?!")
_MARKUP = re.compile(r"</?[A-Za-z!][^>]*>?|\s+")
_DIGIT = re.compile("[0-9]")
_MAY_CLOSE = frozenset("?\uff1f\u061f\"'\u201d\u2019)*_ ")


def _by_rarest_word(phrases: Mapping[str, str]) -> dict[bytes, list[tuple[bytes, Kind]]]:
    """Return phrases by the word in them that is no function word, and the longest."""
    found: dict[bytes, list[tuple[bytes, Kind]]] = {}
    for kind, text in phrases.items():
        for phrase in text.split("|"):
            words = phrase.encode().translate(_SMALL).split()
            key = max(words, key=_rarity)
            found.setdefault(key, []).append((b" %b " % b" ".join(words), cast("Kind", kind)))
    return found


_QUICK_FUNCTION_WORDS = frozenset(
    word for each in FUNCTION_WORDS for word in each.encode().translate(_SMALL).split()
)


def _rarity(word: bytes) -> tuple[bool, bool, int]:
    return word not in _QUICK_FUNCTION_WORDS, word == b"now", len(word)


_SELF = frozenset(
    word for each in _SELF_TEXT.split() for word in each.encode().translate(_SMALL).split()
)
_PHRASES = _by_rarest_word(_CUES)
_PHRASE_WORDS = frozenset(_PHRASES)
CHANGE_WORDS = frozenset(
    word for word, told in _PHRASES.items() if "change" in {kind for _, kind in told}
)
"""What tells of a change, as `quick_words`: it is no subject of what has changed."""


def quick_words(text: str) -> Set[bytes]:
    """Return the words of a text in small letters, in bytes and without an order, at 40 MB/s.

    For counting and comparing. Only letters and digits of ASCII are told from what is between
    words, and only they become small.
    """
    words = set(text.encode("utf-8", "replace").translate(_SMALL).split())
    if not text.isascii() and _HAS_SPACELESS.search(text):
        words = {word.encode("utf-8", "replace") for word in words_of(text)}
    return words


def without_function_words(words: Set[bytes]) -> Set[bytes]:
    """Return content words of a set of `quick_words`."""
    return words - _QUICK_FUNCTION_WORDS


def words_of(text: str) -> list[str]:
    """Return all words of a text in small letters, in order; of spaceless scripts pairs of signs.

    What is written together is one word: "2,400", "well-known".
    """
    small = text.casefold()
    if not text.isascii():
        small = small.replace("\u2019", "'")
        if _HAS_SPACELESS.search(text):
            return [part for word in _WORD.findall(small) for part in _parts(word)]
    # Four times as fast as a pattern.
    return [word for part in small.split() if (word := part.strip(_EDGES))]


def _parts(word: str) -> Iterable[str]:
    for run in _RUN.findall(word):
        if len(run) == 1 or not _HAS_SPACELESS.match(run):
            yield run
        else:
            yield from (run[n : n + 2] for n in range(len(run) - 1))


def content_words(text: str) -> list[str]:
    """Return the words of a text that are no function words; see `words_of`."""
    return [word for word in words_of(text) if word not in FUNCTION_WORDS]


def is_question(sentence: str) -> bool:
    """Whether a sentence ends with a question mark."""
    if sentence[-1:] not in _MAY_CLOSE:
        return False
    return sentence.rstrip("\"'\u201d\u2019)*_ ").endswith(("?", "\uff1f", "\u061f"))


def kinds_of(sentence: str, words: Set[bytes]) -> Set[Kind]:
    """Return the kinds of statement that a word or a phrase tells; none for most.

    Args:
        words: `quick_words(sentence)`, which whoever asks has already.
    """
    found = set[Kind]()
    if telling_words := _PHRASE_WORDS & words:
        small = sentence.encode("utf-8", "replace").translate(_SMALL)
        spaced = b" %b " % b" ".join(small.split())
        for word in telling_words:
            found.update(kind for phrase, kind in _PHRASES[word] if phrase in spaced)
    if not sentence.isascii() and _UNSPACED.search(sentence):
        for kind, within in _WITHIN.items():
            if any(cue in sentence for cue in within):
                found.add(kind)
    return found


def is_courtesy(sentence: str, words: Set[bytes]) -> bool:
    """Whether a sentence is polite, and nothing else that rules know.

    Args:
        words: `quick_words(sentence)`, which whoever asks has already.
    """
    return kinds_of(sentence, words) == {"courtesy"} and not has_digit(sentence)


# "Once approved, …", "when I had decided", "they may have picked"; but "in May we picked".
_BESIDE = re.compile(
    r"\b(?:(?:once|when|if|until|unless|as soon as)(?:[^\w,]+\w+){0,2}?"
    r"|(?:before|after)[^\w,]+(?:i|it|they|we)(?:[^\w,]+\w+)?"
    r"|(?:may|might)(?:\W+(?:be|been|have|not))+)"
    r"[^\w,]+(?:agreed|approved|chosen|decided|picked)\b",
    re.IGNORECASE,
)


@lru_cache(maxsize=4096)
def is_decision(sentence: str) -> bool:
    """Whether a sentence says what was decided, and not beside something else."""
    if is_question(sentence) or "decision" not in kinds_of(sentence, quick_words(sentence)):
        return False
    return _BESIDE.search(sentence) is None


def speaks_of_self(sentence: str, words: Set[bytes]) -> bool:
    """Whether whoever said a sentence tells of themselves.

    Args:
        words: `quick_words(sentence)`, which whoever asks has already.
    """
    if not words.isdisjoint(_SELF):
        return True
    return not sentence.isascii() and any(sign in sentence for sign in _SELF_WITHIN)


def speaks_of_change(sentence: str) -> bool:
    """Whether a sentence says that something is no longer as it was."""
    return "change" in kinds_of(sentence, quick_words(sentence))


def has_digit(text: str) -> bool:
    """Whether a text holds a digit of ASCII."""
    return _DIGIT.search(text) is not None


def has_error(text: str) -> bool:
    """Whether a text tells that something went wrong."""
    return any(sign in text for sign in _ERRORS)


def tells_outcome(text: str) -> bool:
    """Whether a text tells that something was done, was found, or went wrong."""
    return has_error(text) or any(sign in text for sign in _OUTCOMES)


def values_of(sentence: str) -> list[Value]:
    """Return the numbers, amounts, dates, times and versions of a sentence, in order."""
    if _DIGIT.search(sentence) is None:
        return []
    subject = frozenset(word for word in content_words(sentence) if not _DIGIT.search(word))
    found: list[Value] = []
    end = 0
    while digit := _DIGIT.search(sentence, end):
        start, end, unit = _value_at(sentence, digit.start())
        before = sentence[start - 1] if start else " "
        # A digit within a word begins no value ("harbour12", "lena_1905").
        if not ((before == "_" or before.isalnum()) and sentence[start].isdigit()):
            found.append(Value(sentence[start:end].strip(" -\u00a0"), unit, subject - {unit}))
    return found


def _value_at(sentence: str, at: int) -> tuple[int, int, str]:
    """Return where the value with a digit at a place begins and ends, and its unit."""
    before = _BEFORE.search(sentence, max(0, at - 20), at)
    word = before[0].strip(" .") if before else ""
    if word and (word in _SIGNS or word.upper() in _CODES):
        number = _JUST_NUMBER.match(sentence, at)
        end = number.end() if number else at + 1
        return before.start() if before else at, end, _UNIT_NAMES.get(word.casefold(), word)
    if word.casefold() in _MONTHS and (day := _DAY.match(sentence, at)):
        return before.start() if before else at, day.end(), "date"
    found = _VALUE.match(sentence, at)
    if found is None:
        return at, at + 1, ""
    if found.lastgroup in {"date", "time", "version"}:
        return at, found.end(), found.lastgroup
    unit = (found["unit"] or "").casefold()
    return at, found.end(), "" if unit in FUNCTION_WORDS else _UNIT_NAMES.get(unit, unit)


def is_noise(sentence: str) -> bool:
    """Whether a unit is data rather than words: encoded bytes, hashes, rows of symbols."""
    small = sentence.encode("utf-8", "replace").translate(_SMALL)
    # What is not ASCII is letters, as far as it matters here.
    if len(small) - small.count(b" ") + sentence.count(" ") < 0.6 * len(small):
        return True
    if len(sentence) > MAX_WORD_CHARS and " " not in sentence:
        return _UNSPACED.search(sentence) is None
    if is_row_of_numbers(sentence) or (sentence[:1] == "<" and not _MARKUP.sub("", sentence)):
        return True
    runs = _RUN_OF_SIGNS.findall(sentence)
    return any(_DIGIT.search(run) and not run.isdigit() for run in runs)


def is_row_of_numbers(sentence: str) -> bool:
    """Whether hardly a word of a row has a letter: a progress bar, a table of measurements."""
    if sentence[-1:] in _PROSE_ENDS or _DIGIT.search(sentence) is None:
        return False
    words = sentence.split()
    if len(words) < ROW_WORDS:
        return False
    return sum(any(map(str.isalpha, word)) for word in words) * 4 < len(words)


def looks_like_code(text: str) -> bool:
    """Whether a text is rather pasted than written: code, markup, a line of a log."""
    if text[-1:] in _PROSE_ENDS:
        return False
    signs = len(text.encode("utf-8", "replace").translate(None, _NO_SIGNS))
    return signs > CODE_SIGNS * max(len(text), CODE_CHARS)


ROW_WORDS = 9
CODE_SIGNS = 0.12
CODE_CHARS = 30
"""Code has so many signs among its characters; prose less than half of that."""
MAX_WORD_CHARS = 120
"""A longer row of letters and digits is no word of any language that parts words."""
KIND_WEIGHTS: dict[Kind, float] = {
    "instruction": 1.5,
    "preference": 1.4,
    "decision": 1.4,
    "change": 1.3,
    "plan": 1.2,
    "value": 1.3,
    "question": 0.7,
    "courtesy": 0.6,
}
"""What a sentence of a kind is worth beside another one with as many words."""


def weight_of(sentence: str, words: Set[bytes]) -> float:
    """Return what the kinds of a sentence make of its worth, about 0.3 to 4; see `KIND_WEIGHTS`.

    Args:
        words: `quick_words(sentence)`, which whoever asks has already.
    """
    weight = KIND_WEIGHTS["question"] if is_question(sentence) else 1.0
    if _DIGIT.search(sentence) is not None:
        weight *= KIND_WEIGHTS["value"]
    # In an order of its own: products of floats depend on it.
    for kind in sorted(kinds_of(sentence, words)):
        weight *= KIND_WEIGHTS[kind]
    return weight


@lru_cache(maxsize=4096)
def telling(sentence: str) -> float:
    """Return how much a sentence says by itself: its content words, more for names and numbers.

    0 for noise and for what has no content word.
    """
    words = quick_words(sentence)
    content = without_function_words(words)
    if not content or is_noise(sentence):
        return 0.0
    said = sum(2.0 if word[:1].isdigit() else 1.0 for word in content)
    return said * weight_of(sentence, words)
