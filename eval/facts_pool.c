/*
 * facts_pool.c - facts to hide in texts. The pool's facts are sentences of 8 to 70 tokens about
 * names, numbers, times, places, colours and things. None of them answers another's question.
 *
 * Invariant: what is drawn depends on style, seed and index of the text alone.
 */
#include "facts_pool.h"

#include <string.h>

#include "words.h"

struct fact {
    const char *sentence;
    const char *question; /* without the demand at its end */
    const char *kind;     /* what is demanded: "Answer with just the KIND, nothing else:" */
    const char *answer;
    const char *wanted; /* NULL: answer */
};

static const struct fact pool[] = {
    /* short */
    {"The gate code is 4471.", "What is the gate code mentioned earlier?", "code", "4471", NULL},
    {"Nadia's horse is called Thimble.", "What is Nadia's horse called, as mentioned earlier?",
     "name", "Thimble", NULL},
    {"The hidden colour is turquoise.", "What is the hidden colour mentioned earlier?", "colour",
     "turquoise", NULL},
    {"Bus 88 stops at Fenwick Hill.", "Where does bus 88 stop, as mentioned earlier?", "place",
     "Fenwick Hill", "Fenwick"},
    {"Dinner is at 19:25.", "At what time is dinner, as mentioned earlier?", "time", "19:25", NULL},
    {"Omar plays the bassoon.", "Which instrument does Omar play, as mentioned earlier?",
     "instrument", "bassoon", NULL},
    {"The parcel weighs 613 grams.", "How many grams does the parcel weigh, as mentioned earlier?",
     "number", "613", NULL},
    {"Locker 52 holds a trumpet.", "What does locker 52 hold, as mentioned earlier?", "thing",
     "trumpet", NULL},
    {"Greta's cat is named Biscuit.", "What is Greta's cat named, as mentioned earlier?", "name",
     "Biscuit", NULL},
    {"The wifi password is maple-3390.", "What is the wifi password mentioned earlier?", "password",
     "maple-3390", "3390"},
    {"The umbrella is crimson.", "Which colour does the umbrella have, as mentioned earlier?",
     "colour", "crimson", NULL},
    {"Hotel room 731 is reserved for Yusuf.",
     "For whom is hotel room 731 reserved, as mentioned earlier?", "name", "Yusuf", NULL},
    /* of middle length: the prototype's facts and their like */
    {"The password of the library in Hamburg is silver-92416.",
     "What is the password of the library in Hamburg mentioned earlier?", "password",
     "silver-92416", "92416"},
    {"Maria Lindqvist's favourite fruit is the dragonfruit.",
     "What is Maria Lindqvist's favourite fruit, mentioned earlier?", "fruit", "dragonfruit",
     "ragon"},
    {"The meeting with Dr. Okafor takes place in room 5318.",
     "In which room does the meeting with Dr. Okafor take place, as mentioned earlier?",
     "room number", "5318", NULL},
    {"The train to Brackwater leaves at 16:47.",
     "When does the train to Brackwater leave, as mentioned earlier?", "time", "16:47", NULL},
    {"The secret code word is PURPLE ELEPHANT 7742.",
     "What is the secret code word mentioned earlier?", "code word and number",
     "PURPLE ELEPHANT 7742", NULL},
    {"The captain of the ship Aurora is called Tobias Renfield.",
     "What is the captain of the ship Aurora called, as mentioned earlier?", "name",
     "Tobias Renfield", NULL},
    {"The spare key is hidden under the blue flowerpot.",
     "Where is the spare key hidden, as mentioned earlier?", "place", "Under the blue flowerpot",
     "flowerpot"},
    {"The access code for the server room is 8391.",
     "What is the access code for the server room mentioned earlier?", "code", "8391", NULL},
    {"The winner of the chess tournament in Tallinn was Ines Caldeira.",
     "Who was the winner of the chess tournament in Tallinn, as mentioned earlier?", "name",
     "Ines Caldeira", NULL},
    {"The price of the antique globe is 3,275 dollars.",
     "What is the price of the antique globe mentioned earlier?", "price", "3,275 dollars",
     "3,275"},
    {"The bakery on Juniper Street closes on Wednesdays.",
     "On which day of the week does the bakery on Juniper Street close, as mentioned earlier?",
     "day", "Wednesday", NULL},
    {"The telephone extension of the night porter is 6024.",
     "What is the telephone extension of the night porter mentioned earlier?", "number", "6024",
     NULL},
    {"The orchestra of Velden rehearses in the old granary.",
     "Where does the orchestra of Velden rehearse, as mentioned earlier?", "place",
     "In the old granary", "granary"},
    {"The submarine Narwhal was painted bright orange.",
     "In which colour was the submarine Narwhal painted, as mentioned earlier?", "colour", "orange",
     NULL},
    {"The licence plate of the stolen van is KVR 2958.",
     "What is the licence plate of the stolen van mentioned earlier?", "licence plate", "KVR 2958",
     "2958"},
    {"Professor Adeyemi keeps a pet tortoise named Wellington.",
     "What is the name of Professor Adeyemi's pet tortoise, as mentioned earlier?", "name",
     "Wellington", NULL},
    /* long */
    {"After the storm had passed and the roads were open again, the council of Marrowdale decided "
     "in a long session, against the advice of the engineers, that the new bridge over the river "
     "should be named after Cordelia Finch.",
     "After whom should the new bridge of Marrowdale be named, as mentioned earlier?", "name",
     "Cordelia Finch", NULL},
    {"Among the many things that were found in the attic of the house on Linden Square, beside two "
     "broken chairs, a heap of letters and a clock without hands, there was a violin that an "
     "expert valued at 84,600 francs.",
     "At how many francs was the violin from the attic valued, as mentioned earlier?", "number",
     "84,600", "84,600"},
    {"The travellers were told by the old ferryman, who had crossed the lake every day for thirty "
     "years and knew every one of its moods, that the safest place to land in the fog was the "
     "inlet called Heron's Elbow.",
     "What is the inlet called that is the safest place to land in the fog, as mentioned earlier?",
     "name", "Heron's Elbow", "Elbow"},
    {"According to the log of the expedition, which was written in pencil and is hard to read in "
     "places, the team reached the upper camp late in the evening with two sledges and exactly 37 "
     "cans of fuel, fewer than they had hoped.",
     "How many cans of fuel did the team have at the upper camp, as mentioned earlier?", "number",
     "37", NULL},
    {"In her will, which surprised all of her relatives and was disputed for several years, the "
     "widow of the clockmaker left the whole of her fortune, the house and the workshop included, "
     "to the gardener Anselm Quill.",
     "To whom did the widow of the clockmaker leave her fortune, as mentioned earlier?", "name",
     "Anselm Quill", "Quill"},
    {"The recipe, handed down in the family for four generations and never written down until "
     "last winter, asks for flour, butter, honey and a pinch of salt, and as its secret "
     "ingredient for ground cardamom.",
     "What is the secret ingredient of the family's recipe, as mentioned earlier?", "ingredient",
     "ground cardamom", "cardamom"},
    {"When the machine was switched on for the first time, in front of the assembled "
     "shareholders and a reporter of the local newspaper, it ran without a fault for several "
     "minutes and then stopped because of a defective valve with the part number QX-5107.",
     "What was the part number of the defective valve, as mentioned earlier?", "part number",
     "QX-5107", "5107"},
    {"The committee, after it had compared the offers of nine firms and visited three of them, "
     "agreed to meet again and to sign the contract on the 23rd of October in the reading room of "
     "the town hall.",
     "On which date did the committee agree to sign the contract, as mentioned earlier?", "date",
     "23rd of October", "23"},
    {"Nobody in the village could say where the stranger had come from or what he wanted there, "
     "but everyone remembered that he wore a long grey coat and, on the left hand, a ring with a "
     "large green emerald.",
     "Which stone was in the ring of the stranger, as mentioned earlier?", "stone", "emerald",
     NULL},
    {"The observatory reported that the comet, which had last been seen by a monk with a simple "
     "glass several centuries ago, would pass the Earth at its shortest distance in the early "
     "morning at 04:18, and could be seen with the naked eye.",
     "At what time would the comet pass the Earth at its shortest distance, as mentioned earlier?",
     "time", "04:18", NULL},
    {"For the anniversary of the museum the director borrowed, after a correspondence of more than "
     "two years with a collector who did not want to be named, the famous tapestry of the white "
     "stag from a castle in Slovenia.",
     "From a castle in which country was the famous tapestry borrowed, as mentioned earlier?",
     "country", "Slovenia", NULL},
    {"The apprentice was sent to the market with a list of seven things, of which he forgot all "
     "but one on the way because a juggler held him up, and came home in the evening with nothing "
     "but a basket of quinces.",
     "What was in the basket that the apprentice came home with, as mentioned earlier?", "fruit",
     "quinces", "quince"},
};
#define N_POOL ((int32_t)(sizeof(pool) / sizeof(pool[0])))
_Static_assert(sizeof(pool) / sizeof(pool[0]) % FACTS_OF_TEXT == 0, "a text has facts of one turn");

/* ---- drawing ---- */

static void add_fact(struct facts_picked *out, const struct fact *f)
{
    eval_strings_add(&out->sentence, f->sentence);
    eval_strings_printf(&out->question,
                        "\n\n%s Answer with just the %s, nothing else:", f->question, f->kind);
    eval_strings_add(&out->prefix, "");
    eval_strings_add(&out->answer, f->answer);
    eval_strings_add(&out->wanted, f->wanted != NULL ? f->wanted : f->answer);
}

/* Texts of a seed take turns in one order of the pool. */
static void pick_pool(uint64_t seed, int32_t text, struct facts_picked *out)
{
    int32_t order[sizeof(pool) / sizeof(pool[0])];
    for (int32_t i = 0; i < N_POOL; i++)
        order[i] = i;
    int64_t from = (int64_t)text * FACTS_OF_TEXT;
    struct eval_rng rng = eval_rng_make(seed, 3, (uint64_t)(from / N_POOL));
    eval_rng_shuffle(&rng, order, (size_t)N_POOL, sizeof(*order));
    for (int32_t i = 0; i < FACTS_OF_TEXT; i++)
        add_fact(out, &pool[order[(from + i) % N_POOL]]);
}

/* No two facts of a text share a name, an adjective or a thing. */
static void pick_pith(uint64_t seed, int32_t text, struct facts_picked *out)
{
    struct eval_rng rng = eval_rng_make(seed, 4, (uint64_t)(uint32_t)text);
    struct eval_strings used = {0};
    while (out->sentence.n < FACTS_OF_TEXT && !used.failed && !out->sentence.failed) {
        const char *name = eval_names.word[eval_rng_below(&rng, eval_names.n)];
        const char *adjective = eval_adjectives.word[eval_rng_below(&rng, eval_adjectives.n)];
        const char *thing = eval_things.word[eval_rng_below(&rng, eval_things.n)];
        if (eval_strings_has(&used, name) || eval_strings_has(&used, adjective) ||
            eval_strings_has(&used, thing))
            continue;
        eval_strings_add(&used, name);
        eval_strings_add(&used, adjective);
        eval_strings_add(&used, thing);
        eval_strings_printf(&out->sentence, "The password of %s is %s %s.", name, adjective, thing);
        eval_strings_printf(&out->question, "\nQuestion: What is the password of %s?", name);
        eval_strings_add(&out->prefix, "\nAnswer:");
        eval_strings_printf(&out->answer, "The password of %s is %s %s.", name, adjective, thing);
        eval_strings_printf(&out->wanted, "%s %s", adjective, thing);
    }
    out->sentence.failed = out->sentence.failed || used.failed;
    eval_strings_free(&used);
}

pith_status eval_facts_pick(enum eval_facts_style style, uint64_t seed, int32_t text,
                            struct facts_picked *out, pith_error *err)
{
    static void (*const pick[])(uint64_t, int32_t, struct facts_picked *) = {
        [EVAL_FACTS_POOL] = pick_pool, [EVAL_FACTS_PITH] = pick_pith};
    pick[style](seed, text, out);
    if (out->sentence.failed || out->question.failed || out->prefix.failed || out->answer.failed ||
        out->wanted.failed)
        return eval_fail(err, PITH_NOMEM, "facts: no memory for facts");
    return PITH_OK;
}

void eval_facts_picked_free(struct facts_picked *d)
{
    eval_strings_free(&d->sentence);
    eval_strings_free(&d->question);
    eval_strings_free(&d->prefix);
    eval_strings_free(&d->answer);
    eval_strings_free(&d->wanted);
}
