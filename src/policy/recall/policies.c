/*
 * policies.c - the table of recall's forms, their options, and the public listing. The code that
 * reads an option knows what it does; here stand only the values that a text can have.
 */
#include "policy/recall/recall.h"

#define COUNT_MAX (1 << 29) /* sums of several counts stay within int32_t */
#define PASS_MAX 8192       /* the most tokens of a pass */
#define SIZE_MAX_MEBIBYTES (1 << 30)

/* ---- kv ---- */

static const char *const score_words[] = {
    [RECALL_ATTENTION] = "attention",
    [RECALL_QUOKA] = "quoka",
    [RECALL_BOUNDS] = "bounds",
    [RECALL_TRIATTENTION] = "triattention",
    NULL,
};

static const char *const combine_words[] = {
    [RECALL_MAX] = "max",
    [RECALL_SUM] = "sum",
    NULL,
};

/* As it was stored, or a storage type: 1 + its number; and what is chosen by the model's lanes. */
static const char *const type_words[] = {
    "stored", "f32", "f16", "q8_0", "q4_0", "turbo4", "turbo3", "turbo2", "bf16", "packed", NULL,
};
static const char *const value_words[] = {
    "same", "f32", "f16", "q8_0", "q4_0", "turbo4", "turbo3", "turbo2", "bf16", NULL,
};
static const char *const ram_words[] = {"auto", NULL};

#define AT(member) .offset = offsetof(struct recall_kv_options, member)
static const struct policy_param kv_params[] = {
    {"ram", POLICY_TYPE_SIZE, AT(ram), 0, SIZE_MAX_MEBIBYTES, "auto",
     "host memory for the evicted entries of all sequences; auto: as much as the tokens of the KV "
     "memory take",
     ram_words},
    {"file", POLICY_TYPE_TEXT, AT(file), 0, 0, "",
     "a file behind it, for entries that memory has no room for. Without one they are lost, and "
     "counted",
     NULL},
    {"size", POLICY_TYPE_SIZE, AT(size), 0, SIZE_MAX_MEBIBYTES, "4GiB",
     "the most that the file takes", NULL},
    {"type", POLICY_TYPE_CHOICE, AT(type), 0, 0, "packed",
     "how entries are kept: packed, stored, as they were (exact), or a storage type", type_words},
    {"values", POLICY_TYPE_CHOICE, AT(values), 0, 0, "same",
     "how values are kept: same, as type says, or a storage type", value_words},
    {"take", POLICY_TYPE_BUDGET, AT(take), 1, COUNT_MAX, "25%",
     "the most that comes back, taken out of the keep budget: a share of it, or a number of "
     "entries of a lane",
     NULL},
    {"score", POLICY_TYPE_CHOICE, AT(score), 0, 0, "attention",
     "how evicted entries are scored: attention (the queries' weights), quoka (likeness to them), "
     "bounds (a page's best) or triattention",
     score_words},
    {"combine", POLICY_TYPE_CHOICE, AT(combine), 0, 0, "max",
     "with score=attention: an entry gets the largest weight of a query (max), or their sum",
     combine_words},
    {"queries", POLICY_TYPE_COUNT, AT(queries), 1, 4096, "32",
     "queries of a head that quoka asks with at most: by default all of them", NULL},
    {"fade", POLICY_TYPE_COUNT, AT(fade), 0, 1024, "6",
     "an entry claims its neighbours with its weight, halved over this many positions behind it "
     "and over half as many before it (score=attention; 0: blocks)",
     NULL},
    {"block", POLICY_TYPE_COUNT, AT(block), 1, 1024, "24",
     "with other scores or fade=0 an entry brings this many positions: a quarter before it and the "
     "rest behind",
     NULL},
    {"last", POLICY_TYPE_COUNT, AT(last), 1, PASS_MAX, "32",
     "this many last tokens of an evaluation ask. Fewer is sharper for a short question", NULL},
    {"ask", POLICY_TYPE_REAL, AT(ask), 0, 1000, "0.3",
     "a generated token chooses anew in a lane where evicted entries would get this share of its "
     "weight; 0: never",
     NULL},
    {"every", POLICY_TYPE_COUNT, AT(every), 0, COUNT_MAX, "0",
     "generated tokens from one recall to the next, which replaces all guests; 0: no such recall",
     NULL},
    {"stats", POLICY_TYPE_TEXT, AT(stats), 0, 0, "",
     "statistics of the model's queries, required by score=triattention", NULL},
    {0},
};
#undef AT

/* ---- text ---- */

#define AT(member) .offset = offsetof(struct recall_text_options, member)
static const struct policy_param text_params[] = {
    {"db", POLICY_TYPE_TEXT, AT(db), 0, 0, "",
     "the SQLite file; without one the store is in memory and gone with the engine", NULL},
    {"session", POLICY_TYPE_TEXT, AT(session), 0, 0, "",
     "a name: all sequences of the engine share the session, which stays in the store. Without one "
     "each sequence has its own, which ends with it",
     NULL},
    {"url", POLICY_TYPE_TEXT, AT(url), 0, 0, "",
     "an outside store with longctx-svc's endpoints, in place of a file", NULL},
    {"embed", POLICY_TYPE_TEXT, AT(embed), 0, 0, "",
     "a GGUF embedding model, whose vectors are compared beside the words", NULL},
    {"alpha", POLICY_TYPE_REAL, AT(alpha), 0, 1000, "0.5",
     "the share of the vectors' likeness in a score", NULL},
    {"top", POLICY_TYPE_COUNT, AT(top), 1, 64, "32",
     "spans that are searched for sentences at most", NULL},
    {"floor", POLICY_TYPE_REAL, AT(floor), 0, 1000, "0.2", "least score of a span, 0 to 1", NULL},
    {"chars", POLICY_TYPE_COUNT, AT(chars), 1, 1 << 20, "8000", "most characters that are inserted",
     NULL},
    {"bleed", POLICY_TYPE_COUNT, AT(bleed), 0, 4096, "32",
     "tokens by which a stretch of evicted ones is widened on both sides", NULL},
    {"lost", POLICY_TYPE_REAL, AT(lost), 1, 1000, "0.5",
     "share of the lanes that must have lost a token for it to count as evicted", NULL},
    {"ttl", POLICY_TYPE_COUNT, AT(ttl), 0, COUNT_MAX, "1800",
     "seconds that a session lives without use; 0: for ever", NULL},
    {0},
};
#undef AT

/* ---- the table ---- */

static pith_status check_kv(const struct recall_config *c, pith_error *err)
{
    const struct recall_kv_options *o = &c->kv;
    if (o->take.unit == POLICY_UNIT_BYTES)
        return pi_fail(err, PITH_INVALID,
                       "recall: take: %lld bytes: what comes back is a share of the keep budget "
                       "(25%%) or a number of entries of a lane (128)",
                       (long long)o->take.value);
    if (o->take.unit == POLICY_UNIT_SHARE && o->take.value >= 1000000)
        return pi_fail(err, PITH_INVALID,
                       "recall: take: 100%% of the keep budget leaves nothing to keep");
    if (o->score == RECALL_TRIATTENTION && o->stats[0] == '\0')
        return pi_fail(err, PITH_INVALID,
                       "recall: score: triattention needs the model's statistics (stats=FILE, made "
                       "by pith calibrate)");
    if (o->score != RECALL_TRIATTENTION && o->stats[0] != '\0')
        return pi_fail(err, PITH_INVALID,
                       "recall: stats: %.64s: only score=triattention reads statistics", o->stats);
    if (o->ram == 0 && o->file[0] == '\0')
        return pi_fail(err, PITH_INVALID,
                       "recall: ram: 0 bytes and no file: nothing that is evicted could come back");
    return PITH_OK;
}

static pith_status check_text(const struct recall_config *c, pith_error *err)
{
    const struct recall_text_options *o = &c->text;
    if (o->url[0] != '\0' && o->db[0] != '\0')
        return pi_fail(err, PITH_INVALID,
                       "recall: url: %.64s: an outside store takes the place of a file, and db is "
                       "%.64s",
                       o->url, o->db);
    return PITH_OK;
}

static const struct form {
    const char *name;
    const char *summary;
    const char *citation;
    enum recall_kind kind;
    const struct policy_param *params;
    size_t offset; /* of the options in recall_config */
    pith_status (*check)(const struct recall_config *c, pith_error *err);
} forms[] = {
    {"kv",
     "evicted entries stay in a second tier, and the best for a turn's queries are read again", "",
     RECALL_KV, kv_params, offsetof(struct recall_config, kv), check_kv},
    {"text", "evicted spans are stored as text, and a turn's question finds them again",
     "longctx-svc's rescue", RECALL_TEXT, text_params, offsetof(struct recall_config, text),
     check_text},
};

static const struct form *form_at(int32_t i)
{
    return i >= 0 && (size_t)i < PI_LEN(forms) ? &forms[i] : NULL;
}

static const char *name_at(int32_t i)
{
    return form_at(i) != NULL ? form_at(i)->name : NULL;
}

static struct policy_options options_of(const struct form *f, struct recall_config *c)
{
    return (struct policy_options){
        .verb = "recall",
        .name = f->name,
        .own = f->params,
        .own_fields = c != NULL ? (uint8_t *)c + f->offset : NULL,
    };
}

pith_status recall_config_parse(const char *text, struct recall_config *out, pith_error *err)
{
    struct recall_config c = {.kind = RECALL_NONE};
    int32_t index;
    const char *options;
    /* An empty text is none, as a command line has it where an option is taken back. */
    PI_TRY(policy_find("recall", text != NULL && text[0] == '\0' ? NULL : text, name_at, &index,
                       &options, err));
    if (index >= 0) {
        const struct form *f = form_at(index);
        struct policy_options o = options_of(f, &c);
        c.kind = f->kind;
        PI_TRY(policy_options_read(&o, options, err));
        PI_TRY(f->check(&c, err));
    }
    *out = c;
    return PITH_OK;
}

/* ---- the verb ---- */

static bool list_at(int32_t i, struct policy_listed *out)
{
    const struct form *p = form_at(i);
    if (p == NULL)
        return false;
    *out = (struct policy_listed){
        .summary = p->summary, .citation = p->citation, .options = options_of(p, NULL)};
    return true;
}

static pith_status check_option(const char *text, pith_error *err)
{
    struct recall_config config;
    return recall_config_parse(text, &config, err);
}

const struct policy_verb recall_verb = {list_at, check_option};
