"""Numbers, prices, dates and times of day in English and German, for the demo's grammar."""

from .lexicon import Phrase, join

_WORDS = {  # English and German words by number
    "ones": """zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen
        seventeen eighteen nineteen | null eins zwei drei vier fünf sechs sieben acht neun zehn elf zwölf dreizehn
        vierzehn fünfzehn sechzehn siebzehn achtzehn neunzehn""",
    "tens": """- - twenty thirty forty fifty sixty seventy eighty ninety
        | - - zwanzig dreißig vierzig fünfzig sechzig siebzig achtzig neunzig""",
    "months": """January February March April May June July August September October November December
        | Januar Februar März April Mai Juni Juli August September Oktober November Dezember""",
    "days": """Monday Tuesday Wednesday Thursday Friday Saturday Sunday
        | Montag Dienstag Mittwoch Donnerstag Freitag Samstag Sonntag""",
}
_ONES, _TENS, _MONTHS, WEEKDAYS = (
    [Phrase(*words) for words in zip(*(column.split() for column in table.split("|")), strict=True)]
    for table in _WORDS.values()
)


def cardinal(number: int) -> Phrase:
    """Gives 2 to 99 in words: twenty-one, einundzwanzig."""
    if number < 20:
        return _ONES[number]
    tens, unit_digit = divmod(number, 10)
    if unit_digit == 0:
        return _TENS[tens]
    unit = "ein" if unit_digit == 1 else _ONES[unit_digit].de
    return Phrase(f"{_TENS[tens].en}-{_ONES[unit_digit].en}", f"{unit}und{_TENS[tens].de}")


def digits(number: int) -> Phrase:
    """Gives a number in digits: 1,500 and 1.500."""
    return Phrase(f"{number:,}", f"{number:,}".replace(",", "."))


def price(cents: int, sign: str) -> Phrase:
    """Gives an amount: €12.50 and 12,50 €; whole hundreds without the cents."""
    units, odd_cents = divmod(cents, 100)
    number = digits(units)
    if odd_cents:
        number = Phrase(f"{number.en}.{odd_cents:02}", f"{number.de},{odd_cents:02}")
    return Phrase(sign + number.en, f"{number.de} {sign}")


def date(day: int, month: int, year: int | None = None) -> Phrase:
    """Gives a date: on 3 May 2021, am 3. Mai 2021."""
    tail = str(year) if year else ""
    name = _MONTHS[month - 1]
    return Phrase(join(f"on {day} {name.en}", tail), join(f"am {day}. {name.de}", tail))


def clock(hour: int, minute: int) -> Phrase:
    """Gives a time of the 24-hour clock in digits: at 7:45 pm, um 19.45 Uhr."""
    return Phrase(f"at {(hour + 11) % 12 + 1}:{minute:02} {'pm' if hour >= 12 else 'am'}", f"um {hour}.{minute:02} Uhr")


def spoken_clock(hour: int, minute: int) -> Phrase:
    """Gives a time in words, `hour` 1 to 12 and `minute` 0, 5, 10, 15, 20, 30, 40, 45, 50 or 55."""
    current = _ONES[hour]
    following = _ONES[hour % 12 + 1]
    if minute == 0:
        return Phrase(f"at {current.en} o'clock", f"um {'ein' if hour == 1 else current.de} Uhr")
    if minute == 30:
        return Phrase(f"at half past {current.en}", f"um halb {following.de}")
    distance = min(minute, 60 - minute)
    words = Phrase("quarter", "Viertel") if distance == 15 else cardinal(distance)
    if minute < 30:
        return Phrase(f"at {words.en} past {current.en}", f"um {words.de} nach {current.de}")
    return Phrase(f"at {words.en} to {following.en}", f"um {words.de} vor {following.de}")
