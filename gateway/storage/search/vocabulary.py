"""Lists of words: those that any question has, and those that mean about the same.

Stop words are in lists, since in a chat such words can be rare. Languages share spellings ("die",
"war", "man", "son"), so only the words of the language that a question is in are left out: of the
list that holds most of its words, English before the others.

Who asks uses other words than who told: "What is her mother's job?" of "my mum works at the bank".
What means the same is looked for beside a word of the question and is worth less than the word
itself. Only English; other languages have the model of embeddings (docs/recall.md).
"""

import re
from collections.abc import Iterable, Mapping, Set

from gateway.storage.search.stems import folded, stem

_LISTS = {
    "en": """
        a about after again all also am an and any are as at be been before being but by can could
        d did do does doing done during each few for from further had has have having he her here
        hers him his how i if in into is it its just ll m may me might mine more most must my no
        not now of off on once only or other our ours out over own re s same shall she should so
        some such t than that the their theirs them then there these they this those through to too
        under until up us ve very was we were what when where which while who whom whose why will
        with would you your yours aren couldn didn doesn don hadn hasn haven isn shouldn wasn weren
        won wouldn
    """,
    "de": """
        aber als am an auch auf aus bei beim bin bis bist da damit dann das dass dein deine dem den
        der des dich die dies diese dieser dir doch du durch ein eine einem einen einer eines er es
        euch euer fur hab habe haben hat hatte hatten ich ihm ihn ihnen ihr ihre im in ins ist ja
        kann kein keine konnte man mein meine meinem meinen meiner mich mir mit nach nicht noch nun
        nur ob oder schon sein seine sich sie sind so soll uber um und uns unser unsere vom von vor
        wann war waren warum was wegen welche welchem welchen welcher welches wem wen wenn wer
        werde werden wie wieder wieso will wir wird wo wohin woher worden wurde wurden zu zum zur
    """,
    "nl": """
        aan al als ben bij dan dat de deze die dit doen door dus een en er ging had hebben heb
        heeft het hij hoe hun ik in is je jij jou jouw kan kon maar me meer met mij mijn moet na
        naar niet nog nu of om onder ons onze ook op over te toen tot u uit van veel voor waar
        waarom wanneer waren was wat we wel welke welk werd wie wij wil worden wordt ze zich zij
        zijn zo zou
    """,
    "sv": """
        alla att av blev bli blir da dar de dem den denna det detta dig din ditt du efter ej eller
        en ett for fran ha hade han har hon honom hur i inte jag ju kan med men mig min mina mitt
        mot nagon nagot nar nu och om oss pa sa sig sin skulle som till under upp ut vad var varfor
        vem vi vid vilka vilken vilket vara varit at og er af ikke hvad hvor hvem hvordan hvornar
        hvorfor til jeg mit og som pa det
    """,
    "fr": """
        a ai ainsi as au aux avait avec avez avons c ce ces cet cette chez combien comment d dans
        de des dont du elle elles en es est et ete etait eu il ils j je l la laquelle le lequel les
        leur leurs lui m ma mais me mes moi mon n ne nos notre nous on ont ou par pas pour pourquoi
        qu quand que quel quelle quelles quels qui quoi s sa se ses si son sont sur t ta te tes toi
        ton tu un une vos votre vous y
    """,
    "es": """
        a al algo como con cual cuales cuando cuanta cuantas cuanto cuantos de del donde dos el
        ella ellas ellos en era eres es esa ese eso esta estaba estan estas este esto estoy fue
        fueron ha habia hace hacia han has hay he la las le les lo los me mi mis muy nos nosotros o
        para pero por porque que quien quienes se ser si sin sobre son su sus te tiene tienes tu
        tus un una uno y ya yo
    """,
    "it": """
        a ai al alla alle anche c che chi ci col com come con cosa cui da dal dalla dei del della
        delle di dove e ed era ero fa gli ha hai hanno ho i il in io l la le lei li lo loro lui ma
        me mi mia mie miei mio ne nei nel nella noi non o per perche piu qual quale quali quando
        quanta quanti quanto quel quella questa questo se si sia sono stato su sua sue sul sulla
        suo te ti tra tu tua tuo un una uno vi voi
    """,
    "pt": """
        a ao aos as com como da das de dela dele do dos e ela ele eles em era essa esse esta estao
        este eu foi foram ha isso isto ja la lhe mais mas me meu minha muito na nao nas no nos o os
        ou para pela pelo por porque qual quais quando quanta quantas quanto quantos que quem se
        sem ser seu sua sao so te tem tenho ter teu tu tua um uma voce voces onde
    """,
    "pl": """
        a ale bo by byc byl byla bylo byly ci cie co czego czemu czy dla do gdy gdzie go i ich ile
        im ja jak jaka jaki jakie jest jestem kiedy kogo komu kto ktora ktore ktory ma mam mi mial
        mialem mnie moj moja moje mu my na nad nam nas nasz nie niz o od on ona one oni po pod
        przez przy sa sie skad ta tak te tego tej ten to tu twoj ty tym u w we wy z za ze
    """,
    "tr": """
        acaba ama bana ben beni benim bir biz bizim bu buna bunu bunun cok da daha de den diye en
        gibi hangi hangisi her icin idi ile ise iste kac kadar ki kim kime kimin mi mu nasil ne
        neden nerede nereden nereye niye o olan oldu olarak on ona onlar onu onun sana sen seni
        senin siz sizin su var ve veya ya yok zaman
    """,
    "fi": """
        ei eika en ette han hanen ja jo joka jonka jos kanssa ketka kenen kenelle kuin kuinka kuka
        kun me mika miksi milla millainen milloin mina minne minulla minun minulle missa mista mita
        mitka mutta myos ne nyt olen oli olivat olla on ovat paljonko se sen sina sinulla sinun
        sita tai tama te tuo vai vain
    """,
    "hu": """
        a az azt be csak de e egy el en ennek es ez ezt fel ha hanyan hany hogy hogyan hol honnan
        hova is itt ki kicsoda kik kit kinek le lesz ma meg melyik mennyi mennyire mert mi miert
        mikor milyen mint mit nem nekem neki o ok on ott s sem te ti van vagy vannak volt voltak
    """,
    "ru": """
        а без был была были было быть в вам вас во вот все всех вы где да для до его ее если есть
        же за зачем и из или им их к как какая какие какой когда кого кому которая которые который
        кто куда ли мы мне мой моя мои на над нам нас наш не него нее нет но ну о об он она они от
        откуда по под почему при про с сколько со так там тебе тебя то того тоже только ты у уже
        чей чем что чтобы эта эти это я
    """,  # noqa: RUF001 - Russian
}
STOP_WORDS = {language: frozenset(folded(words).split()) for language, words in _LISTS.items()}
"""By language, folded."""


def stop_words_of(words: Iterable[str]) -> Set[str]:
    """Return the stop words of the language that these words of a question are in.

    Args:
        words: Folded.
    """
    asked = set(words)
    return max(STOP_WORDS.values(), key=lambda known: len(known & asked))


_SAME = """
mother mom mum mama mommy mummy | father dad daddy papa | grandmother grandma granny nana nan
grandfather grandpa granddad | parents mom dad mum mother father folks
child kid toddler son daughter baby | sister sis sibling | brother bro sibling | nephew niece
husband hubby spouse partner | wife spouse partner | boyfriend girlfriend partner date ex
fiance fiancee engaged | friend buddy pal mate bestie | boss manager supervisor chief
colleague coworker teammate | doctor physician gp | professor prof teacher supervisor
dentist teeth tooth | lawyer attorney | police cop officer | neighbor neighbour
roommate flatmate | guest visitor attendee | customer client
company firm business startup employer | founder found start launch
job work position role career profession occupation | salary wage pay raise income
fire layoff sack dismiss lost | quit resign leave notice | hire employ recruit
promotion promote raise | interview apply application | apartment flat place condo studio
house home | couch sofa | yard garden | garage shed | storey floor | move relocate
rent lease landlord tenant | furniture sofa table chair shelf shelves bed desk
car vehicle auto automobile | bicycle bike cycling cycle | plane flight fly airplane
train railway rail | truck lorry van | subway metro tram underground | taxi cab uber
trip travel journey tour visit went | vacation holiday trip getaway | hotel hostel airbnb
suitcase luggage bag | abroad overseas foreign country | school class
university college uni campus | exam test | grade mark score | course class lesson workshop
study learn | degree diploma bachelor master phd graduate | homework assignment
thesis dissertation | computer laptop pc mac | phone mobile cell smartphone iphone | tv television
photo picture pic image selfie photograph | film movie cinema | show series episode season
song track tune | concert gig show perform | band group | book novel read author
game gaming play videogame | paint painting draw drawing sketch art | dance dancing ballet
music song band concert | instrument guitar piano violin drums | movie film watch
hospital clinic er ward | sick ill flu cold fever unwell
illness disease condition diagnosis diagnose
hurt injure injury wound break broke broken sprain burn | pain ache sore
medicine medication pill drug tablet | surgery operation operate
pregnant pregnancy expecting baby due | allergic allergy allergies intolerant
therapy therapist counseling counselor | anxious anxiety nervous stress stressed worried worry
depressed depression sad down | tired exhausted fatigue sleepy | happy glad joy excited thrilled
angry mad upset annoyed furious pissed | afraid scared fear phobia | proud pride | cry tear weep
laugh funny joke | love adore like | hate dislike stand | favorite favourite best prefer
die death dead pass funeral lost | marry wedding married marriage engaged
divorce separate split breakup | birth born birthday | kill murder
meet met introduce acquainted know | run running jog jogging marathon
gym workout exercise training fitness | swim swimming pool | hike hiking trail walk trek
climb climbing bouldering | ski skiing snowboard slope
race marathon competition contest tournament | win won prize award trophy medal | lose lost defeat
team club squad | practice practise rehearse rehearsal train | cook cooking recipe bake baking
meal dinner lunch breakfast supper dish | dessert cake pie tart cookie ice pudding
restaurant diner bistro eat | coffee espresso latte cafe
beer wine drink alcohol cocktail bar pub | grocery groceries supermarket | vegetarian vegan meat
diet weight calories | hungry starving eat | barbecue bbq grill | buy bought purchase order get
sell sale sold | price cost pay expensive dollars euros | money cash dollars funds
cheap inexpensive discount | borrow lend loan | donate donation charity fundraiser
save saving budget | shop store market mall | gift present gave
clothes outfit dress shirt jacket shoes | shoes boots sneakers
steal stolen theft rob robbery thief | accident crash collision | lose lost missing misplace
find found recover | fix repair mend | build built construct assemble put
break broke broken destroy damage ruin | clean tidy wash | start begin began launch open
finish complete end done | stop quit cease | cancel postpone delay reschedule
plan intend want going | decide decision choose chose
suggest recommend advise advice propose recommendation | help assist support volunteer
teach taught teacher instructor | agree deal | promise swear | big large huge | small tiny little
fast quick speed | pretty beautiful gorgeous lovely | scary terrifying creepy | city town
country nation | location place spot | beach sea coast ocean shore | mountain peak hill summit
forest woods | lake pond river | weather rain snow sunny storm | hurricane storm tornado flood
flower plant bouquet roses | pet dog cat puppy kitten | dog puppy pup | cat kitten
party celebration celebrate | festival fair parade
church mosque temple religion religious faith pray | god faith spiritual
volunteer volunteering charity shelter | meeting appointment call | email mail message
letter note card | news announcement | speech talk presentation present | color colour
center centre | theater theatre play | organize organise plan arrange | realize realise
apologize apologise sorry | program programme | license licence permit
neighborhood neighbourhood area district | error bug exception traceback crash failure
fix solve resolve solution workaround | version release update upgrade
library package dependency framework | deploy deployment production release
database db sql postgres mysql sqlite | authentication auth login password
server host hosting backend | frontend ui interface page | api endpoint route | function method
test testing tests pytest | deadline due date | feature functionality
config configuration settings | performance speed latency slow fast
increase raise grow improve higher | decrease reduce lower drop | percent percentage share portion
average mean median | goal target aim objective | issue problem trouble difficulty
"""
_KINDS = """
pet: dog cat puppy kitten hamster rabbit parrot fish turtle guinea horse greyhound retriever
animal: dog cat horse bird fish cow pig sheep rabbit bear snake turtle bee
instrument: guitar piano violin viola drum cello flute bass trumpet saxophone ukulele clarinet
  keyboard
sport: football soccer basketball tennis running swimming climbing yoga volleyball baseball hockey
  golf surfing skiing cycling boxing karate
hobby: painting reading gardening knitting hiking photography pottery cooking baking fishing
  gaming chess collecting
activity: hiking painting swimming camping pottery running museum yoga dancing picnic kayaking
food: pizza pasta rice salad soup bread cheese chicken sushi burger sandwich taco curry steak
fruit: apple banana orange lemon berry strawberry grape melon mango peach cherry
vegetable: tomato carrot onion potato spinach broccoli pepper cucumber salad
drink: coffee tea water juice wine beer milk soda cocktail
vehicle: car bike van truck bus motorcycle moped scooter train
family: mother father sister brother son daughter wife husband parents grandma cousin aunt uncle
  kids
relative: mother father sister brother cousin aunt uncle grandma grandpa nephew niece
job: teacher nurse doctor engineer manager lawyer waiter baker accountant designer developer chef
health: doctor hospital sick diagnosis blood pain surgery therapy medication allergy
furniture: sofa table chair shelf bed desk lamp cupboard
clothing: shirt dress jacket shoes jeans coat hat sweater scarf
plant: flower tree fern cactus basil tomato rose orchid seedling herb
device: phone laptop tablet camera watch headphones computer
game: chess poker monopoly nintendo playstation xbox card board minecraft
genre: rock jazz pop fantasy thriller romance comedy horror mystery
season: spring summer autumn fall winter
subject: math history geography biology physics chemistry english art
feeling: happy sad angry afraid proud lonely nervous excited
color: red blue green yellow orange purple pink black white brown
weather: rain snow sun storm wind cold hot
language: english german french spanish italian japanese chinese python rust java
art: painting drawing sculpture pottery gallery museum photography
event: party wedding concert festival parade conference workshop meeting race
"""
MOST = 16
"""Words that are looked for beside one."""


def _groups() -> Mapping[str, tuple[str, ...]]:
    found: dict[str, dict[str, None]] = {}
    for group in re.split(r"[|\n]", _SAME):
        stems = [stem(word) for word in group.split()]
        for each in stems:
            found.setdefault(each, {}).update(dict.fromkeys(stems))
    for kind, members in re.findall(r"^(\w+):([^:]+?)$(?=\n\w|\Z)", _KINDS.strip(), re.MULTILINE):
        found.setdefault(stem(kind), {}).update(dict.fromkeys(map(stem, members.split())))
    return {
        each: tuple(other for other in others if other != each) for each, others in found.items()
    }


_KNOWN = _groups()


def alike(term: str) -> tuple[str, ...]:
    """Return the stems of what means about the same as a word, given by its stem."""
    return _KNOWN.get(term, ())[:MOST]
