/*
 * vocab_load.c - tokenizer.* metadata to a vocabulary. Everything that the file says is checked
 * here, once: types and lengths of arrays, ids in range, known names. Afterwards the vocabulary
 * owns all it needs and the file may go.
 */
#include <ctype.h>
#include <stdio.h>

#include "base/mem.h"
#include "text/vocab/vocab_internal.h"

/* ---- tokens known by their text ---- */

struct known_text {
    const char *text;
    uint8_t attr; /* bits that a token with this text gets, regardless of the file */
};

#define STOP (PI_TOKEN_CONTROL | PI_TOKEN_END)

/* Files seldom name every token that ends a turn, and some give such tokens a wrong type. The texts
   are those that published models use. The last group is for filling in the middle: a model that
   writes the name of another file or repository has left its task. */
static const struct known_text known_texts[] = {
    {"<|eot_id|>", STOP}, /* Llama 3 */
    {"<|eom_id|>", STOP},
    {"<|end_of_text|>", STOP},
    {"<|im_end|>", STOP},    /* ChatML */
    {"<|endoftext|>", STOP}, /* GPT-2, Qwen, Phi */
    {"<|end|>", STOP},       /* Phi-3 */
    {"<end_of_turn>", STOP}, /* Gemma */
    {"<eos>", STOP},
    {"</s>", STOP}, /* Llama 2, Mistral */
    {"<\xef\xbd\x9c"
     "end\xe2\x96\x81of\xe2\x96\x81sentence\xef\xbd\x9c>",
     STOP},                    /* DeepSeek */
    {"<|EOT|>", PI_TOKEN_END}, /* DeepSeek Coder: user-defined, read from text always */
    {"<EOT>", STOP},
    {"_<EOT>", STOP},
    {"[EOT]", STOP},
    {"[EOS]", STOP},
    {"<|return|>", STOP},
    {"<|call|>", STOP},
    {"<end_of_utterance>", STOP},
    {"<|fim_pad|>", STOP},
    {"<fim-pad>", STOP},
    {"<fim_pad>", STOP},
    {"<|fim_repo|>", STOP},
    {"<|repo_name|>", STOP},
    {"<fim-repo>", STOP},
    {"<reponame>", STOP},
    {"<|file_sep|>", STOP},
    {"<|fim_prefix|>", PI_TOKEN_CONTROL},
    {"<fim-prefix>", PI_TOKEN_CONTROL},
    {"<fim_prefix>", PI_TOKEN_CONTROL},
    {"<|fim_suffix|>", PI_TOKEN_CONTROL},
    {"<fim-suffix>", PI_TOKEN_CONTROL},
    {"<fim_suffix>", PI_TOKEN_CONTROL},
    {"<|fim_middle|>", PI_TOKEN_CONTROL},
    {"<fim-middle>", PI_TOKEN_CONTROL},
    {"<fim_middle>", PI_TOKEN_CONTROL},
    {"<\xef\xbd\x9c"
     "fim\xe2\x96\x81"
     "begin\xef\xbd\x9c>",
     PI_TOKEN_CONTROL},
    {"<\xef\xbd\x9c"
     "fim\xe2\x96\x81hole\xef\xbd\x9c>",
     PI_TOKEN_CONTROL},
    {"<\xef\xbd\x9c"
     "fim\xe2\x96\x81"
     "end\xef\xbd\x9c>",
     PI_TOKEN_CONTROL},
};

static uint8_t known_attr(struct pi_str text)
{
    if (text.len < 4 || text.len > 40 || strchr("<[_", text.data[0]) == NULL)
        return 0;
    for (size_t i = 0; i < PI_LEN(known_texts); i++) {
        if (strlen(known_texts[i].text) == text.len &&
            memcmp(known_texts[i].text, text.data, text.len) == 0)
            return known_texts[i].attr;
    }
    return 0;
}

/* Vocabularies whose special tokens swallow the white space behind them. Files do not carry the
   attribute; the name of the model tells. */
static bool strips_right(const struct pi_gguf *g)
{
    struct pi_str name = {0};
    if (pi_gguf_str(g, "general.name", &name, NULL) != PITH_OK)
        return false;
    for (size_t i = 0; i + 4 <= name.len; i++) {
        const char *p = name.data + i;
        bool phi = tolower((uint8_t)p[0]) == 'p' && tolower((uint8_t)p[1]) == 'h' &&
                   tolower((uint8_t)p[2]) == 'i';
        if (phi && (p[3] == '3' || (p[3] == '-' && i + 5 <= name.len && p[4] == '3')))
            return true;
    }
    return false;
}

/* ---- token texts ---- */

/* The file's tokenizer.ggml.token_type. */
enum { TYPE_UNKNOWN = 2, TYPE_CONTROL = 3, TYPE_USER = 4, TYPE_BYTE = 6 };

static uint8_t attr_of_type(int64_t type)
{
    switch (type) {
    case TYPE_UNKNOWN:
        return PI_TOKEN_UNKNOWN;
    case TYPE_CONTROL:
        return PI_TOKEN_CONTROL;
    case TYPE_USER:
        return PI_TOKEN_USER;
    case TYPE_BYTE:
        return PI_TOKEN_BYTE;
    default:
        return 0;
    }
}

static int32_t hex_digit(char c)
{
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
                                  : -1;
}

/* The value of "<0x0A>", or -1. */
static int32_t byte_of_text(struct pi_str text)
{
    if (text.len != 6 || memcmp(text.data, "<0x", 3) != 0 || text.data[5] != '>')
        return -1;
    int32_t high = hex_digit(text.data[3]), low = hex_digit(text.data[4]);
    return high < 0 || low < 0 ? -1 : high * 16 + low;
}

/* Copies text with U+2581 as spaces; returns the length. */
static size_t unescape(struct pi_str text, char *out)
{
    size_t n = 0;
    for (size_t i = 0; i < text.len;) {
        bool mark = text.len - i >= 3 && memcmp(text.data + i, "\xe2\x96\x81", 3) == 0;
        out[n++] = mark ? ' ' : text.data[i];
        i += mark ? 3 : 1;
    }
    return n;
}

/* The input that merging turns into the token, at out; false when there is none. */
static bool make_key(const struct pi_vocab *v, struct pi_str text, char *out, size_t *len)
{
    if (v->type == PI_VOCAB_BPE)
        return pi_bpe_decode(text.data, text.len, out, len);
    *len = unescape(text, out);
    return memchr(text.data, ' ', text.len) == NULL;
}

/* Appends the text that token id prints and its key. v->text has room for both. */
static void add_token(struct pi_vocab *v, int32_t id, struct pi_str text)
{
    struct pi_token *token = &v->token[id];
    uint8_t attr = v->attr[id];
    char *out = v->text + v->text_len;
    int32_t byte = (attr & PI_TOKEN_BYTE) != 0 ? byte_of_text(text) : -1;
    size_t len;
    token->piece = token->key = (uint32_t)v->text_len;
    if (byte >= 0) {
        out[0] = (char)byte;
        token->piece_len = 1;
        v->text_len += 1;
        return;
    }
    if ((attr & PI_TOKEN_SPECIAL) == 0) {
        bool found = make_key(v, text, out, &len);
        if (!found && v->type == PI_VOCAB_BPE) {
            memcpy(out, text.data,
                   text.len); /* a text outside of the alphabet is printed as it is */
            len = text.len;
        }
        token->piece_len = (uint32_t)len;
        token->key_len = found ? (uint32_t)len : 0;
        v->text_len += len;
        return;
    }
    memcpy(out, text.data, text.len);
    token->piece_len = (uint32_t)text.len;
    v->text_len += text.len;
    if ((attr & PI_TOKEN_USER) != 0 && make_key(v, text, v->text + v->text_len, &len)) {
        token->key = (uint32_t)v->text_len;
        token->key_len = (uint32_t)len;
        v->text_len += len;
    }
}

/* ---- the table of keys ---- */

static uint64_t slot_tag(uint64_t hash)
{
    return hash & 0xffffffff00000000u;
}

int32_t pi_vocab_find(const struct pi_vocab *v, const char *text, size_t len)
{
    if (len > v->max_key_len || len == 0)
        return -1;
    uint64_t hash = pi_hash(text, len), slot;
    for (uint32_t i = (uint32_t)hash & v->slot_mask; (slot = v->slot[i]) != 0;
         i = (i + 1) & v->slot_mask) {
        if (slot_tag(slot) != slot_tag(hash))
            continue;
        int32_t id = (int32_t)(uint32_t)slot - 1;
        const struct pi_token *token = &v->token[id];
        if (token->key_len == len && memcmp(v->text + token->key, text, len) == 0)
            return id;
    }
    return -1;
}

/* Of tokens with the same key the first is found. */
static void index_key(struct pi_vocab *v, int32_t id)
{
    const struct pi_token *token = &v->token[id];
    uint64_t hash = pi_hash(v->text + token->key, token->key_len), slot;
    uint32_t i = (uint32_t)hash & v->slot_mask;
    for (; (slot = v->slot[i]) != 0; i = (i + 1) & v->slot_mask) {
        const struct pi_token *other = &v->token[(uint32_t)slot - 1];
        if (slot_tag(slot) == slot_tag(hash) && other->key_len == token->key_len &&
            memcmp(v->text + other->key, v->text + token->key, token->key_len) == 0) {
            v->twins = true;
            return;
        }
    }
    v->slot[i] = slot_tag(hash) | (uint32_t)(id + 1);
    if (token->key_len > v->max_key_len)
        v->max_key_len = token->key_len;
}

static pith_status index_keys(struct pi_vocab *v, pith_error *err)
{
    size_t n_slot = 16; /* at most two thirds full */
    while (n_slot < (size_t)v->n_token + (size_t)v->n_token / 2)
        n_slot *= 2;
    v->slot = pi_mem_alloc_n(PI_MEM_MODEL, n_slot, sizeof(*v->slot));
    if (v->slot == NULL)
        return pi_fail(err, PITH_NOMEM, "no memory for an index of %d tokens", v->n_token);
    v->slot_mask = (uint32_t)(n_slot - 1);
    for (int32_t id = 0; id < v->n_token; id++)
        if (v->token[id].key_len > 0)
            index_key(v, id);
    return PITH_OK;
}

/* ---- arrays ---- */

/* Vocabularies have up to a few hundred thousand tokens; more than this is damage. */
#define TOKEN_MAX (1 << 28)

static pith_status read_types(struct pi_vocab *v, const struct pi_gguf *g,
                              const struct pi_gguf_kv *tokens, pith_error *err)
{
    const char *key = "tokenizer.ggml.token_type";
    const struct pi_gguf_kv *types = NULL;
    pith_status status = pi_gguf_array(g, key, PI_GGUF_I32, &types, err);
    if (status != PITH_OK && status != PITH_NOT_FOUND)
        return status;
    if (types != NULL && types->n_item != (uint64_t)v->n_token)
        return pi_fail(err, PITH_FORMAT, "%s: %llu types for %d tokens", key,
                       (unsigned long long)types->n_item, v->n_token);
    for (int32_t id = 0; id < v->n_token; id++) {
        struct pi_str text = pi_gguf_item_str(tokens, (uint64_t)id);
        if (types != NULL)
            v->attr[id] = attr_of_type(pi_gguf_item_int(types, (uint64_t)id));
        else if (v->type == PI_VOCAB_SPM && byte_of_text(text) >= 0)
            v->attr[id] = PI_TOKEN_BYTE;
    }
    return PITH_OK;
}

static pith_status read_tokens(struct pi_vocab *v, const struct pi_gguf *g, int32_t n_token_min,
                               pith_error *err)
{
    const char *key = "tokenizer.ggml.tokens";
    const struct pi_gguf_kv *tokens;
    pith_status status = pi_gguf_array(g, key, PI_GGUF_STRING, &tokens, err);
    if (status == PITH_NOT_FOUND)
        return pi_fail(err, PITH_FORMAT, "%s: absent", key);
    PI_TRY(status);
    if (tokens->n_item == 0 || tokens->n_item > TOKEN_MAX)
        return pi_fail(err, PITH_FORMAT, "%s: %llu tokens; 1 to %d are possible", key,
                       (unsigned long long)tokens->n_item, TOKEN_MAX);
    v->n_token = (int32_t)tokens->n_item;
    v->n_id = v->n_token > n_token_min ? v->n_token : n_token_min;
    v->token = pi_mem_alloc_n(PI_MEM_MODEL, (size_t)v->n_id, sizeof(*v->token));
    v->attr = pi_mem_alloc_n(PI_MEM_MODEL, (size_t)v->n_id, sizeof(*v->attr));
    if (v->token == NULL || v->attr == NULL)
        return pi_fail(err, PITH_NOMEM, "no memory for %d tokens", v->n_id);
    PI_TRY(read_types(v, g, tokens, err));
    uint64_t size = 1;
    for (int32_t id = 0; id < v->n_token; id++)
        size += 2 * (uint64_t)pi_gguf_item_str(tokens, (uint64_t)id).len + 1;
    if (size > UINT32_MAX)
        return pi_fail(err, PITH_FORMAT, "%s: %llu bytes of text are too many", key,
                       (unsigned long long)(size / 2));
    v->text = pi_mem_alloc(PI_MEM_MODEL, (size_t)size);
    if (v->text == NULL)
        return pi_fail(err, PITH_NOMEM, "no memory for the text of %d tokens", v->n_token);
    for (int32_t id = 0; id < v->n_token; id++)
        add_token(v, id, pi_gguf_item_str(tokens, (uint64_t)id));
    PI_TRY(index_keys(v, err));
    /* Rules about a token come after the index: they do not change how text merges.
     */
    for (int32_t id = 0; id < v->n_token; id++)
        v->attr[id] |= known_attr(pi_gguf_item_str(tokens, (uint64_t)id));
    return PITH_OK;
}

/* ---- ids and flags ---- */

/* An id that is absent stays as it is; one written as all ones means "none". */
static pith_status read_id(const struct pi_vocab *v, const struct pi_gguf *g, const char *name,
                           int32_t *out, pith_error *err)
{
    char key[64];
    uint32_t value;
    snprintf(key, sizeof(key), "tokenizer.ggml.%s_token_id", name);
    const struct pi_gguf_kv *kv = pi_gguf_find(g, key);
    if (kv != NULL && kv->type == PI_GGUF_I32 && pi_gguf_item_int(kv, 0) == -1)
        value = UINT32_MAX;
    else {
        pith_status status = pi_gguf_u32(g, key, &value, err);
        if (status == PITH_NOT_FOUND)
            return PITH_OK;
        PI_TRY(status);
    }
    if (value != UINT32_MAX && value >= (uint32_t)v->n_id)
        return pi_fail(err, PITH_FORMAT, "%s: %u, but there are %d tokens", key, value, v->n_id);
    *out = value == UINT32_MAX ? -1 : (int32_t)value;
    return PITH_OK;
}

static pith_status read_ids(struct pi_vocab *v, const struct pi_gguf *g, pith_error *err)
{
    static const char *const ends[] = {"eos", "eot", "eom", "fim_pad", "fim_rep", "fim_sep"};
    /* SentencePiece puts its three first; other vocabularies have none unless the file says so. */
    bool spm = v->type == PI_VOCAB_SPM && v->n_token > 2;
    v->unk = spm ? 0 : -1;
    v->bos = spm ? 1 : -1;
    v->eos = spm ? 2 : -1;
    PI_TRY(read_id(v, g, "bos", &v->bos, err));
    PI_TRY(read_id(v, g, "eos", &v->eos, err));
    PI_TRY(read_id(v, g, "unknown", &v->unk, err));
    if (v->eos >= 0)
        v->attr[v->eos] |= PI_TOKEN_END;
    for (size_t i = 0; i < PI_LEN(ends); i++) {
        int32_t id = -1;
        PI_TRY(read_id(v, g, ends[i], &id, err));
        if (id >= 0)
            v->attr[id] |= PI_TOKEN_END;
    }
    return PITH_OK;
}

/* The special token of a text; -1: none. */
static int32_t special_of(const struct pi_vocab *v, const char *text)
{
    size_t len = strlen(text);
    for (int32_t id = 0; id < v->n_token; id++)
        if ((v->attr[id] & PI_TOKEN_SPECIAL) != 0 && v->token[id].piece_len == len &&
            memcmp(v->text + v->token[id].piece, text, len) == 0)
            return id;
    return -1;
}

/* Names of the tokens around a gap, of families of models. repo and file may be NULL. */
static const struct gap_names {
    const char *prefix, *suffix, *middle, *repo, *file;
} gap_names[] = {
    {"<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>", "<|repo_name|>", "<|file_sep|>"},
    {"<fim_prefix>", "<fim_suffix>", "<fim_middle>", "<reponame>", "<file_sep>"},
    {"<fim-prefix>", "<fim-suffix>", "<fim-middle>", NULL, NULL},
    {"<\xef\xbd\x9c"
     "fim\xe2\x96\x81"
     "begin\xef\xbd\x9c>",
     "<\xef\xbd\x9c"
     "fim\xe2\x96\x81"
     "hole\xef\xbd\x9c>",
     "<\xef\xbd\x9c"
     "fim\xe2\x96\x81"
     "end\xef\xbd\x9c>",
     NULL, NULL},                                                                /* DeepSeek */
    {"\xe2\x96\x81<PRE>", "\xe2\x96\x81<SUF>", "\xe2\x96\x81<MID>", NULL, NULL}, /* Code Llama */
    {"<PRE>", "<SUF>", "<MID>", NULL, NULL},
    {"<|code_prefix|>", "<|code_suffix|>", "<|code_middle|>", NULL, NULL}, /* GLM */
    {"<[fim-prefix]>", "<[fim-suffix]>", "<[fim-middle]>", NULL, NULL},    /* Seed-Coder */
    {"<|prefix|>", "<|suffix|>", "<|middle|>", NULL, NULL},                /* Falcon-H1 */
};

/* The token that is found by a text alone, special or not; -1: none. */
static int32_t token_of(const struct pi_vocab *v, const char *text)
{
    int32_t id = text != NULL ? special_of(v, text) : -1;
    if (id >= 0 || text == NULL)
        return id;
    char key[64];
    size_t len = unescape((struct pi_str){text, strlen(text)}, key);
    return v->type == PI_VOCAB_SPM ? pi_vocab_find(v, key, len)
                                   : pi_vocab_find(v, text, strlen(text));
}

/* The first family of which the vocabulary has all three, then what the file names. */
static pith_status read_gap(struct pi_vocab *v, const struct pi_gguf *g, pith_error *err)
{
    pith_gap_tokens *gap = &v->gap;
    for (size_t i = 0; i < PI_LEN(gap_names); i++) {
        const struct gap_names *n = &gap_names[i];
        int32_t prefix = token_of(v, n->prefix);
        int32_t suffix = prefix >= 0 ? token_of(v, n->suffix) : -1;
        int32_t middle = suffix >= 0 ? token_of(v, n->middle) : -1;
        if (middle < 0)
            continue;
        *gap =
            (pith_gap_tokens){prefix, suffix, middle, token_of(v, n->repo), token_of(v, n->file)};
        break;
    }
    PI_TRY(read_id(v, g, "prefix", &gap->prefix, err)); /* as files of 2024 name them */
    PI_TRY(read_id(v, g, "suffix", &gap->suffix, err));
    PI_TRY(read_id(v, g, "middle", &gap->middle, err));
    PI_TRY(read_id(v, g, "fim_pre", &gap->prefix, err));
    PI_TRY(read_id(v, g, "fim_suf", &gap->suffix, err));
    PI_TRY(read_id(v, g, "fim_mid", &gap->middle, err));
    PI_TRY(read_id(v, g, "fim_rep", &gap->repo, err));
    return read_id(v, g, "fim_sep", &gap->file, err);
}

/* Where "<|return|>" and "<|call|>" end an answer (gpt-oss), "<|end|>" ends a message of it, and it
   and the other marks of messages are shown. llama.cpp makes them tokens that any text may name;
   here a user's text does not. */
static void show_messages(struct pi_vocab *v)
{
    static const char *const marks[] = {"<|end|>", "<|start|>", "<|channel|>", "<|message|>",
                                        "<|constrain|>"};
    if (special_of(v, "<|return|>") < 0 || special_of(v, "<|call|>") < 0)
        return;
    for (size_t i = 0; i < PI_LEN(marks); i++) {
        int32_t id = special_of(v, marks[i]);
        if (id >= 0)
            v->attr[id] = (uint8_t)((v->attr[id] & ~PI_TOKEN_END) | PI_TOKEN_SHOWN);
    }
}

static pith_status read_flag(const struct pi_gguf *g, const char *key, bool *out, pith_error *err)
{
    pith_status status = pi_gguf_bool(g, key, out, err);
    return status == PITH_NOT_FOUND ? PITH_OK : status;
}

static void strip_right(struct pi_vocab *v)
{
    static const char *const plain[] = {"<unk>", "<s>", "<|endoftext|>"};
    for (int32_t id = 0; id < v->n_token; id++) {
        const struct pi_token *token = &v->token[id];
        bool strips = (v->attr[id] & PI_TOKEN_SPECIAL) != 0;
        for (size_t i = 0; i < PI_LEN(plain) && strips; i++)
            strips = strlen(plain[i]) != token->piece_len ||
                     memcmp(plain[i], v->text + token->piece, token->piece_len) != 0;
        if (strips)
            v->attr[id] |= PI_TOKEN_RSTRIP;
    }
}

/* ---- the three kinds ---- */

static pith_status make_kind(struct pi_vocab *v, const char *head, struct pi_str tail,
                             pith_error *err)
{
    size_t head_len = strlen(head);
    v->kind = pi_mem_alloc(PI_MEM_MODEL, head_len + tail.len + 1);
    if (v->kind == NULL)
        return pi_fail(err, PITH_NOMEM, "no memory for a vocabulary");
    memcpy(v->kind, head, head_len);
    memcpy(v->kind + head_len, tail.data, tail.len);
    return PITH_OK;
}

static pith_status load_none(struct pi_vocab *v, const struct pi_gguf *g, int32_t n_token_min,
                             pith_error *err)
{
    struct pi_str arch = {0};
    char key[128];
    uint32_t size = 0;
    v->n_id = n_token_min > 0 ? n_token_min : 0;
    if (pi_gguf_str(g, "general.architecture", &arch, NULL) == PITH_OK && arch.len < 64) {
        snprintf(key, sizeof(key), "%.*s.vocab_size", (int)arch.len, arch.data);
        if (pi_gguf_u32(g, key, &size, NULL) == PITH_OK && size < TOKEN_MAX &&
            (int32_t)size > v->n_id)
            v->n_id = (int32_t)size;
    }
    return make_kind(v, "none", (struct pi_str){"", 0}, err);
}

static pith_status load_bpe(struct pi_vocab *v, const struct pi_gguf *g, pith_error *err)
{
    struct pi_str pre = {"default", 7};
    struct pi_pre_traits traits;
    pith_status status = pi_gguf_str(g, "tokenizer.ggml.pre", &pre, err);
    if (status == PITH_NOT_FOUND)
        pi_log(PITH_LOG_WARN, "tokenizer.ggml.pre=absent used=default");
    else
        PI_TRY(status);
    PI_TRY(pi_pre_create(pre.data, pre.len, &v->pre, &traits, err));
    v->ignore_merges = traits.ignore_merges;
    v->add_bos = traits.add_bos;
    v->composes = traits.composes;
    PI_TRY(make_kind(v, "bpe/", pre, err));
    return pi_vocab_load_bpe(v, g, traits.ranks, err);
}

static pith_status load_kind(struct pi_vocab *v, const struct pi_gguf *g, int32_t n_token_min,
                             pith_error *err)
{
    struct pi_str model = {"none", 4};
    pith_status status = pi_gguf_str(g, "tokenizer.ggml.model", &model, err);
    if (status != PITH_OK && status != PITH_NOT_FOUND)
        return status;
    if ((model.len == 4 && memcmp(model.data, "none", 4) == 0) ||
        (model.len == 8 && memcmp(model.data, "no_vocab", 8) == 0))
        return load_none(v, g, n_token_min, err);
    if (model.len == 4 && memcmp(model.data, "gpt2", 4) == 0)
        v->type = PI_VOCAB_BPE;
    else if (model.len == 5 && memcmp(model.data, "llama", 5) == 0)
        v->type = PI_VOCAB_SPM;
    else
        return pi_fail(err, PITH_UNSUPPORTED,
                       "tokenizer.ggml.model: \"%.*s\" is not supported (gpt2 and llama are)",
                       (int)(model.len < 60 ? model.len : 60), model.data);
    PI_TRY(read_tokens(v, g, n_token_min, err));
    if (v->type == PI_VOCAB_BPE) {
        PI_TRY(load_bpe(v, g, err));
    } else {
        v->add_bos = v->add_space_prefix = true;
        PI_TRY(make_kind(v, "spm", (struct pi_str){"", 0}, err));
        PI_TRY(pi_vocab_load_spm(v, g, err));
        PI_TRY(read_flag(g, "tokenizer.ggml.add_space_prefix", &v->add_space_prefix, err));
    }
    PI_TRY(read_flag(g, "tokenizer.ggml.add_bos_token", &v->add_bos, err));
    PI_TRY(read_flag(g, "tokenizer.ggml.add_eos_token", &v->add_eos, err));
    PI_TRY(read_ids(v, g, err));
    PI_TRY(read_gap(v, g, err));
    show_messages(v);
    if (strips_right(g))
        strip_right(v);
    return pi_vocab_load_special(v, err);
}

pith_status pi_vocab_load(const struct pi_gguf *g, int32_t n_token_min, struct pi_vocab **out,
                          pith_error *err)
{
    struct pi_vocab *v = pi_mem_alloc(PI_MEM_MODEL, sizeof(*v));
    if (v == NULL)
        return pi_fail(err, PITH_NOMEM, "no memory for a vocabulary");
    v->bos = v->eos = v->unk = -1;
    v->gap = (pith_gap_tokens){-1, -1, -1, -1, -1};
    pith_status status = load_kind(v, g, n_token_min, err);
    if (status != PITH_OK) {
        pi_vocab_free(v);
        return status;
    }
    *out = v;
    return PITH_OK;
}

void pi_vocab_free(struct pi_vocab *v)
{
    if (v == NULL)
        return;
    pi_pre_free(v->pre);
    vocab_tree_free(atomic_load(&v->tree));
    pi_mem_free(v->kind);
    pi_mem_free(v->token);
    pi_mem_free(v->attr);
    pi_mem_free(v->priority);
    pi_mem_free(v->text);
    pi_mem_free(v->slot);
    pi_mem_free(v->merge);
    pi_mem_free(v->trie);
    pi_mem_free(v);
}
