/*
 * vocab_internal.h - the inside of a vocabulary, shared by the vocab_*.c files only.
 *
 *   vocab_load.c     metadata -> struct pi_vocab
 *   vocab_special.c  finds the text of special tokens in front of everything else
 *   vocab_pre.c      splits text into words by the pre-tokenizer's patterns
 *   nfc.c            composes text where the tokenizer wants that
 *   vocab_merge.c    joins the symbols of one word, best pair first
 *   vocab_bpe.c      byte-level symbols and ranked merges
 *   vocab_spm.c      SentencePiece symbols and scores
 *   vocab.c          the public operations
 *   vocab_tree.c     the tokens as a tree of their bytes
 */
#ifndef PI_VOCAB_INTERNAL_H
#define PI_VOCAB_INTERNAL_H

#include <stdatomic.h>

#include "text/vocab/nfc.h"
#include "text/vocab/vocab_tree.h"

enum pi_vocab_type { PI_VOCAB_NONE, PI_VOCAB_BPE, PI_VOCAB_SPM };

/* The kinds of a token; none of the bits is a normal token. */
enum pi_token_attr {
    PI_TOKEN_CONTROL = 1, /* has no bytes unless special ones are asked for */
    PI_TOKEN_UNKNOWN = 2, /* the same */
    PI_TOKEN_USER = 4,    /* user-defined: its text always becomes it */
    PI_TOKEN_BYTE = 8,    /* "<0x0A>" */
    PI_TOKEN_END = 16,    /* ends a generation */
    PI_TOKEN_RSTRIP = 32, /* in text, swallows the white space behind it */
    PI_TOKEN_SHOWN = 64,  /* a control token that has its bytes all the same */
};
#define PI_TOKEN_SPECIAL (PI_TOKEN_CONTROL | PI_TOKEN_UNKNOWN | PI_TOKEN_USER)

/* Control and unknown tokens are read from text only when the caller asks. */
static inline bool pi_token_user_only(uint8_t attr)
{
    return (attr & PI_TOKEN_SPECIAL) == PI_TOKEN_USER;
}

enum { PI_STARTS_USER = 1, PI_STARTS_CONTROL = 2 };

/* Offsets into pi_vocab.text. piece is what the token prints; key is the input that merging can
   turn into it: decoded bytes, with U+2581 as a space. key_len 0: merging never makes it. */
struct pi_token {
    uint32_t piece, piece_len;
    uint32_t key, key_len;
};

/* A merge: symbols left and right become id. */
struct pi_merge {
    uint64_t pair; /* left << 32 | right */
    uint32_t rank; /* lower goes first */
    int32_t id;    /* -1: an empty slot */
};

/* A node of the trie of special tokens. Children are a list through next; 0 is none (the root is
   node 0 and no node's child). */
struct pi_trie_node {
    uint32_t child, next;
    int32_t id; /* -1: no token ends here */
    uint8_t byte;
};

struct pi_pre;

struct pi_vocab {
    enum pi_vocab_type type;
    char *kind;             /* owned */
    int32_t n_token;        /* listed by the file */
    int32_t n_id;           /* n_token, or more where the embedding has more rows */
    struct pi_token *token; /* [n_id], owned */
    uint8_t *attr;          /* [n_id] bits of pi_token_attr, owned */
    char *text;             /* owned */
    size_t text_len;
    uint64_t *slot; /* [slot_mask + 1] keys -> ids: hash tag << 32 | id + 1, 0 is empty; owned */
    uint32_t slot_mask;
    uint32_t max_key_len;
    bool twins;            /* some tokens have the key of another */
    int32_t bos, eos, unk; /* -1 where absent */
    pith_gap_tokens gap;
    bool add_bos, add_eos;
    int32_t byte_id[256]; /* the token of a byte that nothing else covers, -1 where absent */
    bool lacks_bytes;     /* BPE only: some bytes have no token, and are left out of words */

    struct pi_merge *merge; /* [merge_mask + 1] BPE only, owned; NULL: ids are ranks */
    uint32_t merge_mask;
    struct pi_pre *pre; /* BPE only, owned */
    bool ignore_merges; /* a word that is a token whole is not merged */
    bool composes;      /* text is brought into form NFC first, special tokens are not */

    uint32_t *priority;    /* [n_token] SentencePiece only: smaller for a higher score; owned */
    bool add_space_prefix; /* SentencePiece only */
    bool space_leads;      /* no token has a space behind another character: words split there */

    struct pi_trie_node *trie; /* [n_trie], owned */
    uint32_t n_trie;
    uint8_t starts[256]; /* the PI_STARTS_ bits of special tokens that start with a byte */

    _Atomic(struct vocab_tree *) tree; /* NULL until the first use; owned */
};

/* ---- lookups ---- */

/* The token whose key is text, or -1. */
int32_t pi_vocab_find(const struct pi_vocab *v, const char *text, size_t len);

static inline const char *pi_token_key(const struct pi_vocab *v, int32_t id)
{
    return v->text + v->token[id].key;
}

/* Any bytes to 64 bits. Not for hostile keys: a vocabulary is chosen by its user. */
static inline uint64_t pi_hash(const char *bytes, size_t len)
{
    const uint64_t k = 0x9e3779b97f4a7c15u;
    uint64_t h = len * k, word;
    for (; len >= 8; len -= 8, bytes += 8) {
        memcpy(&word, bytes, 8);
        h = (h ^ word) * k;
        h ^= h >> 32;
    }
    word = 0;
    for (size_t i = 0; i < len; i++)
        word = word << 8 | (uint8_t)bytes[i];
    h = (h ^ word) * k;
    return h ^ h >> 29;
}

/* ---- loading ---- */

/* ranks: a file without merges is whole. */
pith_status pi_vocab_load_bpe(struct pi_vocab *v, const struct pi_gguf *g, bool ranks,
                              pith_error *err);
pith_status pi_vocab_load_spm(struct pi_vocab *v, const struct pi_gguf *g, pith_error *err);
/* Builds the trie from attr and the pieces of special tokens. */
pith_status pi_vocab_load_special(struct pi_vocab *v, pith_error *err);

/* Decodes the byte-level alphabet of GPT-2: every byte is one printable character there. Returns
   false, *out_len then undefined, when a character is none of the 256; out has room for len. */
bool pi_bpe_decode(const char *text, size_t len, char *out, size_t *out_len);

/* ---- pre-tokenizer ---- */

/* The traits of a "tokenizer.ggml.pre". */
struct pi_pre_traits {
    bool ignore_merges;
    bool add_bos;  /* unless the file says otherwise */
    bool composes; /* the published tokenizer has the normalizer NFC */
    bool ranks;    /* a file without merges is whole: ids of tokens are their ranks */
};

/* Per thread: what matching needs to write to. Zero it before pi_pre_begin. */
struct pi_pre_scratch {
    void *match[8]; /* one per pattern; owned */
    int32_t n_match;
};

typedef pith_status pi_word_fn(void *user, const char *word, size_t len, pith_error *err);

/* UNSUPPORTED for an unknown name, NOMEM. */
pith_status pi_pre_create(const char *name, size_t len, struct pi_pre **out,
                          struct pi_pre_traits *traits, pith_error *err);
void pi_pre_free(struct pi_pre *pre);
pith_status pi_pre_begin(const struct pi_pre *pre, struct pi_pre_scratch *scratch, pith_error *err);
void pi_pre_end(struct pi_pre_scratch *scratch);

/* Calls fn with the words of text in order; together they are the whole text. Bytes that are not
   well-formed UTF-8 are words of their own. */
pith_status pi_pre_split(const struct pi_pre *pre, struct pi_pre_scratch *scratch, const char *text,
                         size_t len, pi_word_fn *fn, void *user, pith_error *err);

/* ---- one call of tokenize ---- */

struct pi_symbol {
    uint32_t start, len; /* len 0: merged into another */
    int32_t prev, next;  /* -1 at the ends */
    int32_t id;          /* -1: no token, its bytes are */
};

struct pi_bigram {
    uint64_t order; /* smaller goes first: priority << 32 | index of the left symbol */
    uint32_t right; /* index of the right symbol */
    uint32_t len;   /* bytes of both, to recognise what is out of date */
    int32_t id;     /* what they become */
};

#define PI_CACHED_LEN 26
#define PI_CACHED_IDS 9
/* A word met before in this call; 64 bytes. */
struct pi_cached_word {
    uint8_t len, n_id;
    char text[PI_CACHED_LEN];
    int32_t id[PI_CACHED_IDS];
};

struct pi_session {
    const struct pi_vocab *vocab;
    int32_t *out; /* [cap], the caller's */
    int64_t cap;
    int64_t n_out;            /* ids so far, those beyond cap too */
    struct pi_symbol *symbol; /* [symbol_cap], owned */
    struct pi_bigram *heap;   /* [2 * symbol_cap], owned */
    size_t symbol_cap;
    struct pi_cached_word *cache; /* NULL for short texts; owned */
    char *buffer; /* SentencePiece: a fragment with its spaces in place; BPE: a word without the
                     bytes that have no token; owned */
    size_t buffer_cap;
    struct pi_nfc nfc;
    struct pi_pre_scratch pre;
};

/* Makes room for len bytes in s->buffer; what stood there is gone. NOMEM. */
pith_status pi_session_buffer(struct pi_session *s, size_t len, pith_error *err);

/* Zero the session and set out and cap before. NOMEM; end it in any case. */
pith_status pi_session_begin(struct pi_session *s, const struct pi_vocab *v, size_t text_len,
                             pith_error *err);
void pi_session_end(struct pi_session *s);

static inline void pi_session_emit(struct pi_session *s, int32_t id)
{
    if (s->n_out < s->cap)
        s->out[s->n_out] = id;
    s->n_out++;
}

/* Tokenizes one word (pi_word_fn, user is the session): from the cache, whole, or by merging. */
pith_status pi_session_word(void *session, const char *word, size_t len, pith_error *err);

/* Tokenizes text without special tokens. */
pith_status pi_bpe_text(struct pi_session *s, const char *text, size_t len, pith_error *err);
/* prefix: put a space in front where the vocabulary asks for it. */
pith_status pi_spm_text(struct pi_session *s, const char *text, size_t len, bool prefix,
                        pith_error *err);

/* Takes bytes that have no token out of a word, which then stands in s->buffer. NOMEM. */
pith_status pi_bpe_known(struct pi_session *s, const char **word, size_t *len, pith_error *err);

/* Symbols of a word: fills s->symbol and returns their count, at most len. */
size_t pi_bpe_symbols(struct pi_session *s, const char *word, size_t len);
size_t pi_spm_symbols(struct pi_session *s, const char *word, size_t len);
/* Whether two neighbours merge: sets the priority (smaller first) and the id of the pair. */
bool pi_bpe_pair(const struct pi_vocab *v, int32_t left, int32_t right, uint32_t *priority,
                 int32_t *id);
bool pi_spm_pair(const struct pi_vocab *v, const char *text, size_t len, uint32_t *priority,
                 int32_t *id);
bool pi_rank_pair(const struct pi_vocab *v, const char *text, size_t len, uint32_t *priority,
                  int32_t *id);

/* ---- special tokens ---- */

/* The longest special token that text starts with, or -1; user-defined ones only unless all. */
int32_t pi_special_at(const struct pi_vocab *v, const char *text, size_t len, bool all);

#endif
