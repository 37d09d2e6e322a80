"""A small table of everyday words with synonyms and antonyms: our own work, for the demo and for tests.

Each row is one meaning and its opposite, where it has one: part of speech, words, opposite words. Every word of a row's
half is a synonym of the others there and an antonym of those in the other half.
"""

from __future__ import annotations

ROWS = """
a | big large huge | small little tiny
a | fast quick rapid | slow
a | hot | cold chilly icy
a | warm | cool
a | good fine | bad poor
a | happy glad cheerful | sad unhappy
a | strong powerful mighty | weak feeble
a | old aged | young
a | new fresh modern | old ancient
a | rich wealthy | poor
a | hard difficult tough | easy simple
a | hard solid | soft
a | clean neat tidy | dirty messy
a | bright light | dark dim
a | loud noisy | quiet silent
a | high tall | low short
a | long | short brief
a | wide broad | narrow
a | thick | thin
a | deep | shallow
a | heavy | light
a | full | empty vacant
a | open | closed shut
a | early | late
a | wet damp | dry
a | brave bold | afraid timid
a | clever smart bright | stupid foolish
a | kind friendly gentle | cruel unkind
a | beautiful pretty lovely | ugly
a | safe secure | dangerous risky
a | true correct right | false wrong
a | cheap inexpensive | expensive costly
a | sweet | bitter sour
a | near close | far distant
a | famous known | unknown obscure
a | angry furious | calm peaceful
a | smooth even | rough uneven
a | strange odd unusual | common usual normal
v | walk stroll |
v | run race dash |
v | start begin | stop end finish
v | love adore | hate detest
v | like enjoy | dislike
v | laugh | cry weep
v | buy purchase | sell
v | open | close shut
v | rise climb | fall sink
v | win | lose
v | find discover | lose
v | build construct | destroy demolish
v | push shove | pull drag
v | remember recall | forget
v | accept take | refuse reject
v | arrive come | leave depart
v | answer reply | ask
v | help aid assist | hinder
v | increase grow | decrease shrink
v | praise | blame criticise
v | shout yell | whisper
v | attack | defend protect
v | speak talk |
v | watch observe | ignore
v | throw toss | catch
v | repair mend fix | break
n | man | woman
n | boy lad | girl lass
n | child kid | adult
n | husband | wife
n | friend companion pal | enemy foe
n | day | night
n | morning dawn | evening dusk
n | start beginning | end finish
n | war | peace
n | joy happiness | grief sorrow
n | success triumph | failure
n | love | hatred
n | rich | poor
n | house home |
n | road street |
n | picture image |
n | stone rock |
n | car automobile |
n | city | village
n | summer | winter
n | north | south
n | top summit | bottom base
n | buyer customer | seller
n | question | answer reply
n | winner | loser
r | quickly fast rapidly | slowly
r | loudly noisily | quietly silently
r | often frequently | rarely seldom
r | always | never
r | early | late
r | well | badly poorly
r | happily gladly | sadly
r | suddenly abruptly | gradually
r | easily | hardly
"""
"""Rows of the table, one a line."""
