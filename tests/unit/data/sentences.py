"""Sentences of some languages, as many as a test needs: frequent words around words that mean nothing."""

TEMPLATES = {
    "en": "the {0} of the {1} is in a {2} and it was to be on that {0}",
    "fr": "le {0} de la {1} est dans un {2} et il est pour les {0}",
    "de": "der {0} ist in der {1} und die {2} ist nicht mit dem {0} zu sehen",
    "es": "el {0} de la {1} está en un {2} y los {0} se ven con las {1}",
    "da": "den {0} og en {1} er på vej til det {2} i for af med",
    "ru": "в {0} и на {1} не было, что я как он с этим {2} но к нему",
    "ja": "これは{0}の本です。{1}はどこにありますか",
    "zh": "这是他的书{0}他们在哪里工作学习生活",
    "ka": "ეს არის {0} და {1} სახლში {2}",
    "yo": "ọkùnrin {0} ti ó wà ní {1} ń lọ sí {2}",
    "names": "Maria {0} van {1} de la {2}",
    "numbers": "{0} 12.5 / 17 = {1}",
}


def sentences(language: str, number: int = 200) -> list[str]:
    nouns = [a + "a" + b + "o" + c for a in "bdfgk" for b in "lmnrt" for c in "psvxz"]
    return [
        TEMPLATES[language].format(*(nouns[(place * step) % len(nouns)] for step in (1, 7, 11))) + f" {place}"
        for place in range(number)
    ]
