/*
 * policy.h - the policies of a KV cache: which entries stay (keep), which ones attention looks at
 * (read), how evicted ones come back (recall). Also which pages stand for others (share), and the
 * types that keys and values are stored in. It lists them, checks their options, and says what they
 * did to a sequence. The options themselves are strings of pith_engine_params.
 */
#ifndef PITH_POLICY_H
#define PITH_POLICY_H

#include "pith/pith.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- listing ------------------------------------------------------------------------------ */

/* The verb of a policy: it decides which entries stay, which ones attention looks at, how evicted
   ones come back or which pages are shared. */
typedef enum pith_verb { PITH_KEEP, PITH_READ, PITH_RECALL, PITH_SHARE } pith_verb;

#define PITH_N_VERB 4

/* Bits of pith_policy_info.gpu, with the policy's default options. A GPU does these steps itself,
   and the host does the others with numbers that it downloads. */
enum {
    PITH_GPU_ROUNDS = 1, /* scores of rounds, and the choice */
    PITH_GPU_NOTES = 2,  /* notes of attention's weights */
    PITH_ASKS_NOTES = 4, /* the policy asks for such notes, or looks at weights */
    PITH_GPU_STEPS = 8,  /* which entry a step overwrites */
    PITH_ASKS_STEPS = 16 /* steps overwrite entries */
};

typedef struct pith_policy_info {
    const char *name;     /* constant strings, all of them */
    const char *summary;  /* one line */
    const char *citation; /* where it comes from */
    int32_t n_param;
    int32_t n_preset;
    const char *file; /* the option that it cannot do without, and what writes the file; "": none */
    uint32_t gpu;     /* of keep policies alone */
    bool ranks_lanes; /* likewise: its scores rank entries of all lanes without statistics */
    uint32_t reserved[2];
} pith_policy_info;

typedef struct pith_param_info {
    const char *key;
    const char *type; /* "count": a whole number. "budget": also a share (50%) or bytes (64MiB).
                         "real": a number. "choice": one of the words that help lists. "text": a
                         name without comma, at most 255 bytes. "size": bytes (64MiB) */
    const char *help;
    char fallback[32]; /* the value when the option is not given */
    int64_t min;       /* of whole numbers: min <= value <= max; of "real", in thousandths; of
                          "size", in mebibytes */
    int64_t max;
    bool shared; /* a rule that every policy of the verb has */
    uint32_t reserved[7];
} pith_param_info;

/* Options under a name, which are read before those that follow it: "POLICY:NAME,key=value". */
typedef struct pith_preset_info {
    const char *name; /* constant strings, all of them */
    const char *options;
    const char *help;
    uint32_t reserved[8];
} pith_preset_info;

/* The verb's name, "keep", a constant string; "" for a value of no verb. */
PITH_API const char *pith_verb_name(pith_verb verb);

/* Policy i of a verb. NOT_FOUND past the last. */
PITH_API pith_status pith_policy_get(pith_verb verb, int32_t i, pith_policy_info *out);

/* Option j of policy i, the rules that the verb's policies share first. NOT_FOUND when i or j is
   out of range. */
PITH_API pith_status pith_policy_get_param(pith_verb verb, int32_t i, int32_t j,
                                           pith_param_info *out);

/* Preset j of policy i. NOT_FOUND when i or j is out of range. */
PITH_API pith_status pith_policy_get_preset(pith_verb verb, int32_t i, int32_t j,
                                            pith_preset_info *out);

/* Whether text, which may be NULL, can stand in pith_engine_params for the verb: known before there
   is a model. That a budget in bytes is enough shows only with one. INVALID. So is
   "custom", as a program's own policy (keep_score, read_score) is known by its params alone:
   pith_policies_fit reads its options. */
PITH_API pith_status pith_policy_check(pith_verb verb, const char *text, pith_error *err);

/* The name nearest to a misspelt word, for "did you mean". At most a third of the word is wrong, or
   the word is the beginning of one name alone. NULL where none is near. names [n], which may hold
   NULL, are borrowed for the call; what comes back is one of them. */
PITH_API const char *pith_nearest(const char *word, const char *const *names, size_t n);

/* ---- what goes together ------------------------------------------------------------------- */

/* The uses of sequences, in an engine and its scheduler. */
typedef enum pith_use {
    PITH_USE_EVALUATE,     /* they are read and generated, which all others include */
    PITH_USE_PREFIX,       /* a scheduler begins one with pages that others have read */
    PITH_USE_FORK,         /* pith_seq_fork */
    PITH_USE_SWAP,         /* a scheduler takes the memory of one, and goes on with it later */
    PITH_USE_FILE,         /* pith_seq_save and pith_seq_load */
    PITH_USE_DRAFT,        /* tokens are drafted for them (pith_draft_params) */
    PITH_USE_RANKS_ROWS,   /* over several ranks, of which each has some rows (ranks.h) */
    PITH_USE_RANKS_LAYERS, /* of which each has some layers */
    PITH_USE_RANKS_LATENT  /* rows of a model with latent attention, whose lanes each rank has */
} pith_use;

#define PITH_N_USE 9

/* How the policies and storage types of params go together in a use, before there is a model.
   *out, which must not be NULL, gets one sentence. OK: they do; the sentence is what to know of it,
   or empty. INVALID, UNSUPPORTED: why they do not, or what of params cannot be read: the sentence
   that pith_engine_create, pith_scheduler_create or the use itself says. That a model has what they
   need shows only with one; files that options name are not read. */
PITH_API pith_status pith_policies_fit(const pith_engine_params *params, pith_use use,
                                       pith_error *out);

/* ---- keep policies ------------------------------------------------------------------------ */

/*
 * A keep policy evicts entries of a sequence, so that a lane holds at most a budget. When a lane
 * holds budget + slack entries, a round brings it back to the budget: the entries that score lowest
 * go. Whole pages return to the pool, and the other entries keep their positions. docs/policies.md
 * describes the rules and the policies.
 *
 * The promise: a lane that grows holds at most budget + slack entries at any time. It holds fewer
 * than that when an evaluation returns, and at most the budget right after a round. Rounds come at
 * numbers of tokens that depend on the sequence alone, so results depend neither on the chunk nor
 * on threads or company. A sequence that never comes to a round is bit for bit that of the full
 * cache.
 *
 * With the option overwrite=on an evaluation of one token is a step. In a lane that holds its
 * budget the token takes the place of the entry that the last step's attention scored lowest. So no
 * page is taken or given back however many steps follow. Longer evaluations have rounds, and one at
 * their end where the budget is reached: how tokens are cut into evaluations matters then.
 */

/* The options of a keep policy as values, with its defaults and its preset filled in. */
typedef struct pith_keep_rules {
    const char *policy;      /* constant strings; NULL: the full cache, and the numbers are 0 */
    const char *granularity; /* "all", "head", "layer", "layer-head"; "" for the full cache */
    int32_t slack;
    int32_t prefix; /* positions below this always stay */
    int32_t sinks;  /* this number of a lane's oldest entries always stays */
    int32_t window; /* this number of last positions always stays; of a budget that is a share or a
                       size, without its recent part */
    int32_t segments;
    bool pin_prompt;  /* positions that are marked as the prompt always stay, where .. */
    bool overwrite;   /* a token that is evaluated alone takes an entry's place in a full lane */
    int32_t pin_most; /* .. the limit of their number: half of the budget. INT32_MAX where that is a
                         share or a size */
    const char *budget_unit; /* "entries", "share" or "bytes"; "" for the full cache */
    double budget;           /* entries of a lane, a share of the tokens (0.25), or bytes */
    uint32_t reserved[4];
} pith_keep_rules;

/* The rules of a text as for pith_engine_params.keep, which may be NULL. INVALID as
   pith_policy_check. */
PITH_API pith_status pith_keep_get_rules(const char *keep, pith_keep_rules *out, pith_error *err);

/* ---- read policies ------------------------------------------------------------------------ */

/*
 * A read policy evicts nothing. Each chunk of a prompt, and each token that is evaluated alone,
 * attends to a part of the stored entries and to the chunk itself. The policy chooses that part
 * anew for every layer, KV head and chunk. docs/read.md describes the rules and the policies.
 *
 * The promise: with a budget of at least the stored entries the results are full attention's, bit
 * for bit. Chunks are counted from the first token of an evaluation, and from the last keep round
 * in it. The engine's chunk must be at least the policy's. So results depend neither on it nor on
 * threads or company; how a text is cut into evaluations matters. Data that a policy keeps beside
 * entries to choose by is a part of pages and counted with them.
 */

/* ---- recall ------------------------------------------------------------------------------- */

/*
 * Recall needs a keep policy, and brings back what that evicted. `kv` keeps evicted entries in a
 * second tier, host memory and then a file. The queries of a turn's last tokens choose which of
 * them attention reads again, at their own positions: as guests, within the keep budget. `text`
 * writes evicted spans as text to a store that a new turn's question searches. docs/recall.md
 * describes both.
 *
 * The promise of `kv`: a lane's entries and guests together are within the keep budget that was
 * asked for (and its slack between rounds). Guests take a share of it. A budget that is a share of
 * the tokens can come to less than the policy protects; only then are guests on top of it. Guests
 * are chosen anew by the last tokens of each evaluation of several (the option last). With every=N
 * each Nth token that is evaluated alone chooses, too. A keep round that would fall among tokens
 * that choose together comes before them. So results depend neither on the chunk, nor on threads or
 * company; how a text is cut into evaluations matters. Until entries are evicted the bits are the
 * full cache's.
 */

/* ---- share -------------------------------------------------------------------------------- */

/*
 * A share policy lets one page of the KV memory stand in several places of a sequence. Tokens that
 * are evaluated alone form steps, which end at a blank line. When one ends, its pages are compared
 * with the pages of earlier steps of like words. Where two are near enough, the later one is given
 * back and the earlier one read in its place. docs/share.md describes the policies and the options.
 *
 * The promise: the pages that a sequence shares depend on its own tokens alone, neither on chunk
 * and threads nor on company. Only the option across=yes lets it use other sequences' pages. A
 * sequence never takes more pages than without a policy, and one that shares nothing is as without.
 * Any later write to a shared page copies it first. Files (pith_seq_save) hold what is shared, and
 * not which steps there were.
 */

/* Two pages that were compared: a step's and an earlier step's. */
typedef struct pith_share_pair {
    const pith_seq *seq;
    int32_t pos;      /* position of the first entry of the page that could go */
    int32_t from_pos; /* and of the one that would stand for it */
    int32_t n;        /* entries that were compared */
    double cosine;    /* of the steps' bags of tokens */
    double paper;     /* distance as MemShare writes it; where comparing ended early, what it had
                         come to by then, likewise the next two */
    double rms;       /* root mean square difference of an element of K and V, mean over layers */
    double relative;  /* the difference's norm over the entries': 0 equal, about 1.41 unrelated */
    bool early;       /* comparing ended early: too far apart */
    bool shared;
    uint32_t reserved[8];
} pith_share_pair;

/* Called on the thread that evaluates, which must not call the engine or its sequences then, but
   for pith_seq_tokens and pith_seq_length. */
typedef void pith_share_fn(void *user, const pith_share_pair *pair);

/* From now on fn sees every pair that is compared; NULL ends it. With all: every pair is compared
   to the end, and nothing is shared. INVALID: the engine has no share policy. */
PITH_API pith_status pith_engine_set_share_log(pith_engine *engine, pith_share_fn *fn, void *user,
                                               bool all, pith_error *err);

/* ---- storage types ------------------------------------------------------------------------ */

/* A type that keys or values can be stored in (docs/store.md). */
typedef struct pith_store_info {
    const char *name;     /* constant strings, all of them */
    const char *summary;  /* one line */
    const char *citation; /* where it comes from; "": nowhere in particular */
    bool rotated;         /* groups of values are rotated before they are coded */
    uint32_t reserved[8];
} pith_store_info;

/* Storage type i of those that there are, the largest first. NOT_FOUND past the last. */
PITH_API pith_status pith_store_type(int32_t i, pith_store_info *out);

/* Bits of a value of type i in a head of head_dim dimensions, scales included. 0 where the type
   cannot store such a head, or there is no such type. */
PITH_API double pith_store_bits(int32_t i, int32_t head_dim);

/* Whether pith_engine_params.type_k and type_v can be read, before there is a model. Both may be
   NULL. INVALID. */
PITH_API pith_status pith_store_check(const char *type_k, const char *type_v, pith_error *err);

/* Where PITH_SHARED_KEYS or more query heads share a KV head, errors of its keys add up in all of
   them. Then q8_0 takes the place of a rotated type of K that was not forced ("turbo3:force"). */
#define PITH_SHARED_KEYS 6

/* ---- what policies did to a sequence ------------------------------------------------------ */

/* The rounds and evictions of the tokens that a sequence holds. A fork goes on counting from its
   origin's numbers, a loaded sequence from zero. The numbers return to zero when every token left
   has all its entries again (pith_seq_truncate, pith_seq_sync). */
typedef struct pith_keep_stats {
    int64_t rounds;
    int64_t evicted;        /* entries, over all lanes */
    int64_t live;           /* entries that the lanes hold now, over n_lane */
    int64_t bytes_freed;    /* of pages that rounds gave back, less copies of shared pages */
    double seconds;         /* spent in rounds */
    int32_t first_round_at; /* tokens in the sequence when the first round ran; -1: none */
    int32_t longest;        /* entries of the lane that holds most */
    int32_t budget;         /* entries per lane that a round leaves now, their mean where layers or
                               heads differ; -1 without a policy */
    int32_t first_overwrite_at; /* tokens in the sequence when a token first took the place of an
                                   entry (the option overwrite); -1: none did */
    int64_t overwritten;        /* of evicted: entries whose place a token took */
    int32_t n_lane;             /* all, or with a keep policy the lanes of layers without a
                                   window */
    uint32_t reserved;
    int64_t remembered_bytes; /* what policies and recall remember of the sequence beside entries:
                                 its share of policy_bytes of pith_memory_stats */
} pith_keep_stats;

PITH_API void pith_seq_keep_stats(const pith_seq *seq, pith_keep_stats *out);

/* The entries that were read and not read for the tokens that the sequence holds, over all layers,
   KV heads and chunks. Forks and files as for pith_keep_stats; forgetting so much that no token is
   left that read a part returns to zero. */
typedef struct pith_read_stats {
    int64_t chunks;       /* chunks times lanes, generated tokens included */
    int64_t sparse;       /* of them: those that read a part */
    int64_t stored;       /* entries that the lanes of all those chunks held */
    int64_t read;         /* of them: those that were read */
    double seconds;       /* spent choosing, over all threads */
    int64_t steps;        /* of chunks: single tokens */
    int64_t steps_sparse; /* of them: tokens that read a part */
    int64_t step_gate;    /* a single token reads lanes of up to this many entries whole; -1: all */
    uint32_t reserved[2];
} pith_read_stats;

PITH_API void pith_seq_read_stats(const pith_seq *seq, pith_read_stats *out);

/* The entries that recall holds of a sequence, and its work for it. Entries are counted over all
   lanes. */
typedef struct pith_recall_stats {
    int64_t recalls;   /* passes that chose guests, or texts that were retrieved */
    int64_t stored;    /* evicted entries in the tier; spans of text in the store */
    int64_t lost;      /* evicted entries that the tier had no room for any longer */
    int64_t guests;    /* entries that are back now; spans that were retrieved last */
    int64_t ram_bytes; /* of the tier */
    int64_t file_bytes;
    double seconds;      /* spent remembering and choosing, over all threads; or writing and
                            searching */
    int64_t guest_bytes; /* of the pages that entries which are back lie in */
    double doubt; /* how far the tokens since the last prompt leaned on entries that did not come
                     back. Of a token it is the share of its attention, the mean of the lanes that
                     look for entries; the largest counts. 0 with recall of text. docs/recall.md
                     says what it is good for */
    uint32_t reserved[4];
} pith_recall_stats;

PITH_API void pith_seq_recall_stats(const pith_seq *seq, pith_recall_stats *out);

/* The pages that are shared among the tokens that a sequence holds. Forks and files as for
   pith_keep_stats. */
typedef struct pith_share_stats {
    int64_t steps_closed;
    int64_t steps_compared; /* of them: those that were long enough, with steps before them */
    int64_t steps_similar;  /* of them: those with a step of like words before them */
    int64_t pages_compared; /* pairs of pages, each in all lanes */
    int64_t pages_early;    /* of them: comparing ended before the last layer */
    int64_t pages_shared;   /* pages, or parts of them, each in all lanes, that stand for others */
    int64_t tokens_shared;  /* entries of a lane that they stand for; over the sequence's tokens:
                               the affected ratio of MemShare */
    int64_t bytes_saved;    /* of the pages that came free */
    double seconds;         /* spent closing and comparing */
    double
        block; /* below this distance pages stand for each other now; 0: it is not measured yet */
    uint32_t reserved[6];
} pith_share_stats;

PITH_API void pith_seq_share_stats(const pith_seq *seq, pith_share_stats *out);

/* Runs a round of the keep policy now, whatever the slack: every lane that holds more than its
   budget is brought to it. With a slack that the sequence never reaches, rounds come only here. So
   a text can be read under the full cache and be cut once. Logits stay those that were computed;
   where there is no policy, or no lane above its budget, nothing happens. INVALID: the budget does
   not hold the pinned prompt. KV_FULL: pages that a fork shares are copied, and there is no room
   for the copies. After these and NOMEM the sequence is as it was. */
PITH_API pith_status pith_seq_keep_round(pith_seq *seq, pith_error *err);

/* With recall `text`: the part of a user's message that is searched for. It is the text behind the
   last "question:" in any case, where that is near the end. Else it is all of a short message. Of a
   longer one it is the last sentences that ask (a question mark, or a word such as "tell"), with
   the text behind them. Where such sentences open the message it is the first ones, and else the
   last sentence. It begins and ends without white space. docs/recall.md has the rules. */
PITH_API void pith_recall_question(const char *message, size_t len, const char **out,
                                   size_t *out_len);

/* The byte of the message in front of which the found text belongs. That is where the question
   begins, its label and the beginning of that line included. Where the question opens the message
   it is the message's end.
 */
PITH_API size_t pith_recall_place(const char *message, size_t len);

/* With recall `text`: the text to put into the user's message that asks, at pith_recall_place: a
   heading and the sentences found, lines of their own. It is no more than the keep budget can hold
   until the question is answered. A keep round runs first where a lane is over its budget, so that
   entries that would go next are found, too. *text is allocated, terminated and freed by
   pith_recall_free; NULL where nothing is found, nothing was evicted, or there is no such recall.
   Failures of the store are no errors: they are said once, and nothing is found. NOMEM, and INVALID
   as pith_seq_keep_round. */
PITH_API pith_status pith_seq_recall_text(pith_seq *seq, const char *question, size_t len,
                                          char **text, pith_error *err);
PITH_API void pith_recall_free(char *text);

#ifdef __cplusplus
}
#endif

#endif
