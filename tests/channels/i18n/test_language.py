"""Language: the bot recognizes the language of a clear message and never guesses."""

# ruff: noqa: RUF001 - people do type look-alike characters

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import sayso
from sayso.channels.i18n.catalogue import LANGUAGES
from sayso.channels.i18n.language import MAX_CHARS, choose, recognize

WRITTEN = {
    "en": [
        "never mind, leave it as it was",
        "no that's not what i meant",
        "please delete the second invoice",
        "what's on my calendar today?",
        "Hi, could you send this to Maria?",
        "I don't want that anymore",
        "how much did we spend with Acme last month",
        "CANCEL THE ORDER FROM YESTERDAY PLEASE",
        "can't you just move it to friday?",
        "I’d like to know when the parcel arrives, thanks",
        'show me the invoice called "Não pago" and my balance',
    ],
    "pt": [
        "me dá o total por mês",
        "cadê meu pedido",
        "não quero mais",
        "apaga a fatura de ontem, por favor, já foi paga",
        "você consegue ver isso pra mim?",
        "vc pode mandar o boleto hj?",
        "Bom dia! Quero cancelar a minha reserva",
        "quais são as faturas em aberto?",
        "obrigado, é só isso",
        "manda a nota pro João amanhã",
        "nao sei qual delas, mas quero apagar uma",
        "Preciso remarcar a reunião com a Ana",
    ],
    "es": [
        "dame el total por mes",
        "creo que lo enviaste dos veces",
        "Quiero la confirmación y las suscripciones",
        "¿puedes borrar la última?",
        "quiero cancelar el pedido de ayer",
        "Hola, necesito la factura de marzo",
        "borra los correos de Acme, por favor",
        "cuanto cuesta y donde lo recojo",
        "¡Qué bien! Mándamelo",
        "mañana no puedo, muy temprano",
        "Buenos días, tengo una duda con mi cuenta",
        "eso ya no lo quiero, gracias",
    ],
    "de": [
        "schick das nochmal an den Kunden",
        "lass es wie es war",
        "bitte lösche die Rechnung von gestern",
        "Kannst du mir die Liste schicken?",
        "ich möchte das nicht mehr",
        "wie heißt der Kunde?",
        "Was kostet das und wann kommt es?",
        "Guten Tag, ich habe eine Frage",
        "zeig mir alle offenen Rechnungen für März",
        "koennen wir das auf morgen verschieben?",
        "Ist die Lieferung schon da?",
    ],
    "fr": [
        "y a-t-il quelque chose à payer cette semaine ?",
        "décale tout de mardi à vendredi",
        "supprime la facture d'hier s'il te plaît",
        "Bonjour, je voudrais annuler ma commande",
        "c'est combien pour demain ?",
        "j'ai besoin de la liste des clients",
        "peux-tu envoyer ça à Marie, merci",
        "où est mon colis ?",
        "je ne veux pas ça",
        "Qu’est-ce que vous avez trouvé ?",
        "quelles sont les factures en retard",
    ],
    "it": [
        "credo che tu l'abbia inviato due volte",
        "sposta tutto da martedì a venerdì",
        "cancella la fattura di ieri per favore",
        "vorrei annullare il mio ordine",
        "Buongiorno, dove è il pacco?",
        "quanto ho speso questo mese?",
        "puoi mandare tutto a Luca domani?",
        "non voglio più questa prenotazione, grazie",
        "perché non è ancora arrivato",
        "cos'è questo?",
        "mi dici quali sono le fatture aperte",
    ],
    "id": [
        "pesan meja untuk dua orang jam delapan",
        "sudah siap belum?",
        "tolong hapus tagihan kemarin",
        "saya mau membatalkan pesanan",
        "berapa total tagihan bulan ini?",
        "Selamat pagi, apakah paketnya sudah sampai?",
        "kirim faktur itu ke Budi",
        "gak jadi, yang ini aja",
        "bisa kirim lagi besok?",
        "terima kasih, itu saja",
        "aku belum bayar yang kedua",
    ],
    "hi": [
        "कल वाला बिल हटा दो",
        "कृपया मेरा ऑर्डर रद्द करें",
        "कितना बकाया है?",
        "मुझे invoice 42 भेज दीजिए",
        "नमस्ते, आज क्या काम है",
        "यह नहीं, दूसरा वाला",
        "Acme को पैसे कब भेजे थे?",
        "धन्यवाद, बस इतना ही",
    ],
    "ar": [
        "احذف فاتورة الأمس من فضلك",
        "كم المبلغ المستحق؟",
        "أريد إلغاء الطلب",
        "مرحبا، أين الشحنة؟",
        "لا أريد هذا",
        "أرسل invoice 42 إلى أحمد لو سمحت",
        "عايز أعرف الميعاد إمتى",
        "شكرًا جزيلًا على المساعدة",
    ],
    "ja": [
        "昨日の請求書を削除してください",
        "いくらですか？",
        "はい",
        "Acmeの注文をキャンセルしたい",
        "これは違います",
        "明日の予定を教えて",
        "ありがとうございます",
        "ｷｬﾝｾﾙして",
    ],
    "tr": [
        "dünkü faturayı sil lütfen",
        "bu ay ne kadar harcadım?",
        "siparişimi iptal etmek istiyorum",
        "Merhaba, kargom nerede?",
        "yarınki toplantıyı cumaya taşır mısın",
        "onu istemiyorum artık",
        "FATURAYI YENİDEN GÖNDERİR MİSİN",
        "bana acik faturalari goster lutfen",
        "geçen ayki ödemeler hangileri",
        "hayır öyle demedim, bir daha bak",
        "lütfen son faturayı sil",
    ],
    "ru": [
        "удалите счёт, пожалуйста",
        "сколько мы должны за прошлый месяц?",
        "я хочу отменить заказ",
        "Привет, где моя посылка?",
        "перенеси встречу на пятницу",
        "покажи все неоплаченные счета",
        "нет, я имел в виду другое",
        "отправь invoice 42 Марии",
        "ОТМЕНИТЕ ВЧЕРАШНИЙ ЗАКАЗ",
        "спасибо, больше ничего не надо",
    ],
    "zh": [
        "请删除昨天的发票",
        "我不要了",
        "这个月花了多少钱？",
        "帮我取消订单",
        "你好，我的快递到哪了",
        "把会议改到星期五",
        "给我看看所有没付的账单",
        "不是这个，是另外一个",
        "我想退款",
        "谢谢，没别的了",
    ],
    "nl": [
        "is de factuur van morgen al klaar of niet",
        "dat is niet wat ik bedoel, wil je het nog een keer doen",
        "verwijder de factuur van gisteren alsjeblieft",
        "Hoeveel hebben we vorige maand uitgegeven?",
        "ik wil mijn bestelling annuleren",
        "Hallo, waar blijft mijn pakket?",
        "kun je die afspraak naar vrijdag verzetten",
        "laat maar, dat hoeft niet meer",
        "stuur die rekening nog eens naar Jan",
        "ANNULEER DE BESTELLING VAN GISTEREN",
        "wat kost dat en wanneer komt het",
    ],
}

UNSURE = [
    "", " ", "ok", "OK!", "no", "si", "sim", "ja", "yes", "1", "42", "👍", "❤️❤️", "?", "¿", "...", "hmm", "A",
    "la la la", "Acme GmbH", "São Paulo", "Los Angeles, Las Vegas", "Hauptstraße 5", "José Muñoz", "invoice 42",
    "pizza margherita", "total 1.250,00", "/delete fatura=minha uma isso",
    "https://example.com/não/você?q=the+please", "ana@example.com", "report_for_you.pdf",
    "\"não sei o que você quer\"", "C:\\Users\\the\\my", "can you agendar a minha reunião para hoje please",
    "thanks obrigado", "Danke, thank you so much my friend, ich bin da", "سلام", "नमस्ते",
    "لطفاً فاکتور را پاک کنید", "براہ کرم یہ حذف کریں", "काल मला बिल मिळाले नाही", "請刪除昨天的發票", "请",
    "送信", "請求書削除希望", "会議延期", "¯\\_(ツ)_/¯",
    "ヽ(´ー`)ノ", "優の良品", "изтрий последната фактура, моля", "видали останній рахунок", "Москва", "삭제해 주세요",
    "обриши последњи рачун", "şterge ultima factură te rog", "sonuncu fakturanı sil zəhmət olmasa",
    "jeg vil gerne slette den sidste faktura", "usuń ostatnią fakturę proszę", "hvad skylder vi den kunde",
    "hur mycket ska jag betala den här månaden", "no és això el que volia, gràcies",
    "tháng này tôi phải trả bao nhiêu", "nu asta am vrut, te rog trimite din nou", "mujhe kal ka bill bhej do",
    "paki send na lang po sa client bukas", "toyota トヨタ corolla price", "\u202e\u202e", "a" * 5000,
]  # fmt: skip


@pytest.mark.parametrize("words", UNSURE)
def test_unclear_message_has_no_language(words):
    """Short, mixed and quoted texts, names, addresses, and languages that do not ship give no guess."""
    assert recognize(words) == ""


@pytest.mark.parametrize(
    ("language", "words"), [(key, words) for key, group in WRITTEN.items() for words in group]
)
def test_clear_message_is_recognized(language, words):
    """The messages are typical of what people type to bots."""
    assert recognize(words) == language


def test_every_shipped_language_has_messages_here():
    """A new catalogue comes with at least eight messages."""
    assert {language for language, messages in WRITTEN.items() if len(messages) >= 8} == set(
        LANGUAGES
    )


@given(st.text())
def test_any_text_is_a_shipped_language_or_none(words):
    """No text raises an error."""
    assert recognize(words) in {*LANGUAGES, ""}


@pytest.mark.parametrize(
    "bit", ["y", '"', "„", "“", "a.a", "a'", "a'-", "¿", "\u0301", "a ", "ﷺ", "/", "ア", "Aa. "]
)
def test_hostile_length_costs_nothing(bit):
    """The text is cut before anything else."""
    assert recognize(bit * 1_000_000) == recognize((bit * MAX_CHARS)[:MAX_CHARS])


@pytest.mark.parametrize(
    ("messages", "hint", "default", "chosen"),
    [
        (["ok", "quero apagar isso"], "de-DE", "en", "pt"),
        (["please delete the last one", "quero apagar isso"], "pt-BR", "fr", "en"),
        (["ok", "42"], "pt-BR", "en", "pt"),
        (["ok"], "PT_br", "en", "pt"),
        ([], "xx", "fr", "fr"),
        ([], "zh-hans", "fr", "zh"),
        ([], "zh-hant", "fr", "fr"),
        ([], "", "fr", "fr"),
        ([], "../en", "fr", "fr"),
    ],
)
def test_newest_clear_message_decides_then_the_hint_then_the_default(
    messages, hint, default, chosen
):
    """A user may change the language at any time."""
    assert choose(messages, hint, default) == chosen


def test_messages_are_read_only_as_far_as_needed():
    """The search stops at the newest clear message."""
    messages = iter(["ok", "quero apagar isso", "never read"])
    assert choose(messages, "", "en") == "pt"
    assert list(messages) == ["never read"]


@pytest.mark.parametrize(
    ("words", "language"),
    [("شكرا جزيلا", "ar"), ("बहुत धन्यवाद", "hi"), ("شكرا", ""), ("धन्यवाद", "")],
)
def test_two_words_in_a_distinct_script_are_enough(words, language):
    """One word may be a name."""
    assert recognize(words) == language


def test_new_language_needs_no_code(tmp_path):
    """Two data files add a language, with texts, a yes, a script and plurals."""
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(Path(sayso.__file__).parent, tmp_path / "sayso", ignore=ignored)
    catalogues = tmp_path / "sayso" / "channels" / "i18n" / "catalogues"
    phrases = tmp_path / "sayso" / "pending" / "consent" / "languages"
    words = (
        (catalogues / "ru.toml").read_text(encoding="utf-8").replace('yes = "да"', 'yes = "так"')
    )
    words = re.sub(r"\\u0400-\\u052f|\\u0410-\\u044f\\u0401\\u0451", r"\\u0530-\\u058f", words)
    (catalogues / "xx.toml").write_text(words, encoding="utf-8")
    (phrases / "xx.toml").write_text(
        'confirm = ["так"]\ncancel = ["не"]\npolite = []\n', encoding="utf-8"
    )
    found = subprocess.run(
        [sys.executable, "-P", "-c", NEW_LANGUAGE], cwd=tmp_path, capture_output=True, text=True, check=True,
        env={"PYTHONPATH": str(tmp_path), "PYTHONIOENCODING": "utf-8"},
    )  # fmt: skip
    assert found.stdout.split() == ["True", "xx", "xx", "минуты", "True"]


#: Whether the new language ships, the language of an Armenian message and of a tag, a plural, and the yes.
NEW_LANGUAGE = """
from sayso.channels.i18n.language import choose, recognize
from sayso.pending.consent.parser import RegexConfirmParser
from sayso.pending.consent.phrases import SHIPPED_LANGUAGES
from sayso.channels.i18n.texts import texts_for
print("xx" in SHIPPED_LANGUAGES, recognize("ջնջել հաշիվը"), choose([], "xx-YY", "en"))
texts = texts_for("xx")
print(texts.undo_offer(180).split()[-1].rstrip("."), RegexConfirmParser(["xx"]).is_confirm(texts.yes))
"""
