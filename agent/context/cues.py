"""Words and phrases by which statements are known, in some fifteen languages; plain data.

In small letters. Phrases stand between bars; those of scripts without spaces are looked for within
the text, the others word by word.
"""

PHRASES = {
    "instruction": """
        always|from now on|going forward|in future|for future|every time|whenever|make sure|
        by default|remember to|remember that|keep in mind|please use|please don't|please do not|
        do not use|don't use|stop using|when i ask|each time|at all times|unless i|i want you to|
        i'd like you to|i would like you to|your answers|your replies|your responses|immer|niemals|
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
        i prefer|i'd prefer|i would prefer|i like|i love|i hate|i dislike|i don't like|
        i can't stand|i'd rather|i would rather|my favorite|my favourite|allergic|vegetarian|vegan|
        intolerant|i'm not a fan|i enjoy|i'm used to|prefer|ich mag|ich bevorzuge|ich hasse|
        am liebsten|mir ist lieber|allergisch|vegetarisch|lieblings|je préfère|j'aime|je déteste|
        j'adore|allergique|végétarien|prefiero|me gusta|me encanta|odio|no soporto|alérgico|
        alérgica|vegetariano|vegetariana|preferisco|mi piace|adoro|prefiro|gosto de|eu gosto|
        ik hou van|ik heb liever|wolę|lubię|предпочитаю|люблю|нравится|ненавижу|аллергия|tercih|
        severim|sevmem|alerjim|jag föredrar|jag gillar|tykkään|pidän|inhoan|lieber""",
    "decision": """
        decided|we agreed|agreed to|let's go with|let's use|let's do|we'll go with|i'll go with|
        going with|settled on|chose|chosen|picked|confirmed|approved|final decision|opted for|
        signed off|booked|entschieden|beschlossen|einigen|vereinbart|nehmen wir|gebucht|bestätigt|
        décidé|choisi|convenu|réservé|confirmé|decidido|decidimos|acordado|elegimos|elegido|
        confirmado|reservado|deciso|scelto|concordato|confermato|prenotato|escolhi|combinado|
        besloten|afgesproken|gekozen|geboekt|zdecydowałem|zdecydowaliśmy|ustalone|wybraliśmy|решил|
        решили|решила|договорились|выбрали|karar verdik|kararlaştırdık|seçtik|bestämt|bestämde|
        valde|päätin|päätimme|sovittu""",
    "plan": """
        i plan|i'm planning|planning to|we plan|i'm going to|we're going to|i will|i'll|we will|
        we'll|i intend|scheduled|deadline|due on|due by|appointment|meeting|next week|next month|
        tomorrow|by friday|by monday|ich werde|wir werden|ich plane|geplant|termin|frist|morgen|
        nächste woche|je vais|nous allons|prévu|rendez-vous|échéance|demain|voy a|vamos a|planeo|
        cita|plazo|mañana|farò|andrò|scadenza|appuntamento|domani|prazo|amanhã|ik ga|gepland|
        afspraak|zamierzam|planuję|jutro|собираюсь|планирую|срок|встреча|завтра|planlıyorum|
        randevu|yarın|jag ska|möte|imorgon|aion|tapaaminen|huomenna""",
    "change": """
        instead|no longer|not anymore|anymore|changed|change of plans|moved to|postponed|
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
        you're welcome|no problem|good morning|good night|bye|cheers|danke|hallo|super|klasse|
        gerne|merci|bonjour|salut|d'accord|gracias|hola|vale|grazie|ciao|obrigado|obrigada|olá|
        dank je|bedankt|dzięki|dziękuję|cześć|спасибо|привет|хорошо|teşekkürler|merhaba|tack|hej|
        kiitos|of course|certainly|absolutely|i hope this helps|let me know|feel free|
        happy to help|hi""",
}

WITHIN = {
    "instruction": """
        总是|永远|以后|从现在起|从今以后|每次|记住|务必|不要再|一律|請|總是|今後|これから|いつも|必ず|毎回|絶対に|二度と|覚えて|常に|항상|
        앞으로|절대|매번|기억해|반드시""",
    "preference": """
        喜欢|喜歡|讨厌|更愿意|偏好|过敏|過敏|吃素|好き|嫌い|苦手|アレルギー|方がいい|좋아|싫어|선호|알레르기|채식""",
    "decision": """
        决定|決定|同意|选了|選了|确定|確定|就用|決め|選び|にします|確認しました|予約|결정|정했|합의|확정|예약""",
    "plan": """
        打算|计划|計劃|将要|截止|预约|会议|明天|下周|下个月|予定|つもり|締め切り|会議|明日|来週|来月|예정|계획|마감|약속|회의|내일|다음주""",
    "change": """
        改成|改为|改到|不再|取消|推迟|换成|变成|而不是|改期|変更|やめ|延期|代わりに|キャンセル|もう|になりました|대신|변경|바꿨|취소|연기|
        더이상""",
    "courtesy": """
        谢谢|你好|好的|不客气|謝謝|ありがとう|こんにちは|了解|わかりました|감사|고마워|안녕|네,|알겠""",
}

MONTHS = """
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

FUNCTION_WORDS = """
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

ERRORS = """
    error failed failure fatal traceback panic denied segfault refused cannot fehlgeschlagen fehler
    erreur échec fallo errore erro fout błąd hata ошибка"""
ERRORS_WITHIN = """错误 失败 エラー 失敗 오류 실패"""

ABBREVIATIONS = """
    abs adj appt apt approx asst av avda ave bd bldg blvd bspw bzw ca capt cf corp dept dhr dipl doc
    dott dr dra ecc eds ej env esim evtl excl exkl exmo fr geb gest ggf godz gov hon hr hrsg incl
    inkl jh jr kap kl klo lic lt mag mevr mio mlle mme mon mr mrd mrs nr nro num núm pág prof puh
    resp sen sgt sig sn sog sr sra srta st ste str tel thr tlf tzw ud uds univ usw vgl vol vs zzgl
    г гл др ул кв руб тыс млн млрд стр рис см проф тел обл"""
"""Without their full stop; words that often end sentences are not among them."""
BEFORE_NUMBER = """
    apr art aug ch chap dec dez déc eq feb févr fig figs jan janv jul juil jun lc mar mär mrz ms n
    no nos nov oct okt p par pos pp pt q sat sec sect sep sept sun tab tue v ver vers wed thu fri"""
"""Abbreviations only where a number follows."""
BEFORE_ORDINAL = """
    am vom zum im der die das dem den des bis ab seit til"""
"""Behind these a number with a full stop counts: "am 3. Mai"."""
GERMAN_MONTHS = """
    januar februar märz april mai juni juli august september oktober november dezember jänner jan
    feb mär apr jun jul aug sep sept okt nov dez"""

UNITS = """
    $=usd dollars=usd dollar=usd bucks=usd usd=usd €=eur euro=eur euros=eur eur=eur £=gbp pounds=gbp
    gbp=gbp ¥=jpy yen=jpy 円=jpy 元=cny chf=chf ₹=inr ₽=rub ₩=krw ₺=try percent=% prozent=% pct=%
    kilos=kg miles=mi"""
"""Names of one unit: what is counted in them may be compared."""
