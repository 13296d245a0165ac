"""Stop words of languages for which bm25s has no list, and words of negation, which are never stop words."""

from __future__ import annotations

from collections.abc import Mapping

_NEGATIONS = (
    "not no nor never none neither without cannot nicht nie niemals ohne kein keine keinem keinen keiner keines niet "
    "geen nooit zonder ikke aldrig aldri uden uten inte ingen utan pas jamais sans aucun aucune non mai senza nunca "
    "sin ningún ninguna não nem sem не нет без нельзя değil yok ei eivät"
)

NEGATIONS = frozenset(_NEGATIONS.split())
"""Words that turn the meaning of a question into its opposite, in languages with a list of stop words."""

OTHER_STOP_WORDS: Mapping[str, str] = {
    "arabic": (
        "من في على إلى الى عن مع هذا هذه ذلك تلك التي الذي الذين ما ماذا هو هي هم كان كانت يكون تكون أن إن ان أو او "
        "ثم كل كما قد لقد بعد قبل بين حتى منذ عند عندما لكن بل إذا اذا كيف متى أين اين هل كم أي اي و ف ب ل ك به بها "
        "له لها فيه فيها منه منها عليه عليها أيضا ايضا حيث بعض غير خلال"
    ),
    "czech": (
        "a aby ale ani asi až bude budou by byl byla bylo být co což do ho i jak jako je jeho jej její jejich jen "
        "ještě již jsem jsou k kde kdo kdy když ke která které který kteří má mezi mi mu na nad nebo o od pak po pod "
        "podle pro proto protože před při s se si tak také tedy ten to tato této tím toho tomu tu u už v ve však z za "
        "že"
    ),
    "finnish": (
        "ja on ei se että joka jotka jonka jossa jota oli ovat ole olla ollut kun kuin niin tai myös mutta sen sitä "
        "siitä siinä hän hänen he heidän tämä tämän tässä nämä ne niiden vain jos mikä mitä missä milloin miten kuka "
        "kuinka jo vielä sekä eli koska mukaan kanssa ennen jälkeen voi voidaan minkä mihin"
    ),
    "greek": (
        "ο η το οι τα του της των τον την και κι να με σε από για στο στη στον στην στα στις στους είναι ήταν που πως "
        "ότι αυτό αυτή αυτός αυτά ένα ένας μια μία ως ή αν θα έχει έχουν τι ποιος ποια ποιο πού πότε πόσο πόσα"
    ),
    "hebrew": (
        "של את על עם הוא היא הם זה זו זאת אל או גם כי אם אשר כל מה מי איך מתי איפה היה היתה היו יש בין אבל רק כמו לפי "
        "אחרי לפני כדי אך עד"
    ),
    "hungarian": (
        "a az és hogy nem is egy van volt ez azt mint de csak meg már el ha vagy még be ki le fel aki ami amely ezt "
        "ezek azok lesz lehet ennek annak mi mit ki kik hol mikor hogyan melyik milyen mennyi pedig után alatt között"
    ),
    "persian": (
        "و در به از که این آن را با است برای یک تا بر هم نیز شده می شود کرد بود خود او ما شما آنها چه چگونه کجا کی هر "
        "اگر یا اما پس"
    ),
    "polish": (
        "a aby ale ani bo by być był była było były co czy dla do gdy gdzie i ich ile jak jako jakie jaki jaka je "
        "jego jej jest jeszcze już kiedy kto która które który których lub ma na nad o od oraz po pod poza przed "
        "przez przy są się ta tak także tam te tego tej ten to tu tylko tym w we więc z za ze że"
    ),
    "romanian": (
        "a al ai ale am ar are au ca care ce cea cei cel cele cine cu cum când câte câți da dar de din după este ei "
        "el ea eu fi fie fost în într-o își la le lui lor mai ne nu o pe pentru prin sau se si și sunt său sa că un "
        "una unei unor unui unde"
    ),
    "ukrainian": (
        "і й та в у на з із зі до від за що як це цей ця ці той та те ті він вона воно вони є був була було були бути "
        "але або чи для при про по під над між після коли де хто який яка яке які якого його її їх також так же ще "
        "вже тільки скільки"
    ),
    "vietnamese": (
        "ai bao bằng bị bởi các cái chỉ cho có còn của cùng cũng do để đã đang đâu đây đến đi điều đó được gì hay hoặc "
        "hơn khi không là làm lên mà mỗi một nào này nếu như nhưng những nhiêu nhiều ở phải ra rất rồi sau sẽ tại theo "
        "thì thế trên trong từ và vào vẫn vậy về vì với"
    ),
}
"""Stop words by language, separated by spaces."""

QUESTION_WORDS: Mapping[str, str] = {
    "german": (
        "wann wozu weshalb wieso warum worauf woran worin womit wodurch wofür wogegen woher wohin wovon wonach worüber"
        " wo wie was wer wen wem wessen welche welcher welches welchen welchem wieviel wieviele"
    ),
    "dutch": (
        "wanneer waarom waar wat wie wiens welke welk hoe hoeveel waarmee waarop waarvoor waardoor waarin waarover"
        " waarheen waarvan"
    ),
}
"""Question words by language, separated by spaces, in addition to those in the lists of stop words."""
