/*
 * recall.h - what was evicted comes back when a query needs it. There are two forms. `kv` puts
 * evicted entries into a second tier (host memory, then a file) and reads the best of them again at
 * their own positions, exactly. `text` writes evicted spans as text and inserts those that a new
 * turn's question finds as a message. Neither changes what keep decides.
 *
 * Entries that came back are guests. They stand in lanes of their own, a second kv_seq of the
 * engine's cache, which attention reads before the sequence's lanes (kv_attend_job.guests). They
 * are replaced whole by the next recall. Their share of memory is taken out of the keep budget, so
 * that both together hold that budget (but for short texts: recall_take_at). Keep's rounds, marks
 * and victims know nothing of them.
 *
 * A recall comes with an evaluation of several tokens (a turn), for which its last `last` tokens
 * are a pass of their own. Layer by layer, after these queries are there and before they attend,
 * they choose each lane's guests. Their queries choose again after a round that comes before the
 * next recall. A token that is evaluated alone chooses where it misses something (ask), with
 * every=N each Nth in every lane.
 */
#ifndef PI_RECALL_H
#define PI_RECALL_H

#include "policy/keep/rules/options.h"
#include "policy/policy.h"

/* ---- options ---- */

enum recall_kind { RECALL_NONE, RECALL_KV, RECALL_TEXT };

enum recall_score {
    RECALL_ATTENTION, /* the weight that the queries would give it beside the lane's own entries */
    RECALL_QUOKA,     /* QuoKA's queries of the pass, cosine, the largest over them */
    RECALL_BOUNDS,    /* the most that q.k can be between the bounds of a page of evicted entries */
    RECALL_TRIATTENTION, /* the folded TriAttention score at the next position (needs statistics) */
};

/* How the scores of several queries for an entry are combined, with RECALL_ATTENTION. */
enum recall_combine {
    RECALL_MAX, /* the most that one of them gives it */
    RECALL_SUM,
};

enum {
    RECALL_PAGE_LEN = 64,          /* entries of a page of the tier */
    RECALL_PACKED = 1 + KV_N_TYPE, /* keys and values in few bits, never more than they had */
    RECALL_RAM_AUTO = -1,          /* what the tokens that the KV memory is for take */
};

/* The options of `kv`. Sizes are bytes. */
struct recall_kv_options {
    int64_t ram;                  /* budget of the tier in host memory; RECALL_RAM_AUTO */
    char file[POLICY_TEXT_SIZE];  /* the tier behind it; "": none */
    int64_t size;                 /* budget of the file */
    int32_t type;                 /* 0: as stored (exact), else 1 + enum kv_type for K and V, or
                                     RECALL_PACKED */
    int32_t values;               /* 0: V as type says, else 1 + enum kv_type */
    struct policy_budget take;    /* of the keep budget: what guests may hold, a share of it or
                                     entries of a lane */
    int32_t score;                /* enum recall_score */
    int32_t combine;              /* enum recall_combine */
    int32_t queries;              /* QuoKA's N_Q */
    int32_t fade;                 /* positions behind an entry over which its weight's claim on
                                     neighbours halves; 0: blocks, as other scores have */
    int32_t block;                /* evicted neighbours that come back together */
    int32_t last;                 /* tokens of the recalling pass */
    double ask;                   /* least share of a generated token's weight that evicted entries
                                     would get for it to ask; 0: it does not */
    int32_t every;                /* generated tokens from one recall to the next; 0: none */
    char stats[POLICY_TEXT_SIZE]; /* of RECALL_TRIATTENTION */
};

/* The options of `text`. */
struct recall_text_options {
    char db[POLICY_TEXT_SIZE];      /* the SQLite file; "": in memory, gone with the engine */
    char session[POLICY_TEXT_SIZE]; /* ""; each sequence has its own */
    char url[POLICY_TEXT_SIZE];     /* an outside store (longctx-svc's endpoints); "": none */
    char embed[POLICY_TEXT_SIZE];   /* a GGUF embedding model; "": BM25 alone */
    double alpha;                   /* share of the cosine in a score with embeddings */
    int32_t top;                    /* spans that are retrieved at most, 32 */
    double floor;                   /* least score, 0 to 1 */
    int32_t chars;                  /* most characters that are inserted, 8000 */
    int32_t bleed;                  /* tokens that a run is widened by on both sides, 32 */
    double lost;                    /* share of the lanes without it that makes a token evicted */
    int32_t ttl;                    /* seconds a session lives without use, 1800; 0: for ever */
};

/* A plain value: copying it is allowed. */
struct recall_config {
    enum recall_kind kind;
    struct recall_kv_options kv;
    struct recall_text_options text;
    struct keep_config whole; /* fitted, of `kv`: the keep policy with all of its budget */
};

/* "kv:ram=256MiB,file=PATH,size=4GiB,..." or "text:..."; NULL, "" and "none": nothing. INVALID. */
pith_status recall_config_parse(const char *text, struct recall_config *out, pith_error *err);
/* Whether it goes together with a keep policy, which was fitted (keep_config_fit): there must be
   one. Of `kv` the guests' share is taken out of its budget, and it is fitted again. INVALID, with
   the numbers; IO. */
pith_status recall_config_fit(struct recall_config *c, const struct kv_geometry *g,
                              struct keep_config *keep, pith_error *err);

/* The most guests of a lane: what the lane's budget was lowered by; of a budget in bytes whole
   pages of that. Where a budget that is a share of the tokens comes to less than the protected
   entries, these stay. The guests then have their share on top of it. c and keep were fitted
   together, c is of `kv`. */
int32_t recall_take_at(const struct recall_config *c, const struct keep_config *keep,
                       const struct kv_geometry *g, int32_t layer, int32_t head,
                       struct keep_point at);

/* Bytes of pages that the guests of a sequence of to.n_token tokens take at most, beside
   keep_bytes_to; 0 without `kv`. */
int64_t recall_bytes_at(const struct recall_config *c, const struct keep_config *keep,
                        const struct kv_geometry *g, struct keep_point to);

/* A lane of a layer as the tier stores it: a cache of one lane, whose pages hold RECALL_PAGE_LEN
   entries. n_group: query heads that share a KV head. */
struct kv_geometry recall_lane_geometry(const struct recall_kv_options *o,
                                        const struct kv_geometry *g, int32_t layer,
                                        int32_t n_group);
/* Bytes that the tier takes in memory so that nothing of n_token tokens is lost, whatever of them
   is evicted; 0 without `kv`. */
int64_t recall_tier_bytes_at(const struct recall_config *c, const struct kv_geometry *g,
                             int32_t n_group, int32_t n_token);

/* ---- kv: the tier ---- */

/* Bytes beside a tier's pages at most while one sequence grows to n_token tokens: of tables, and of
   the working memory of n_thread threads. At most n_guest entries come back to a lane. The statuses
   of the statistics that options name. */
int64_t recall_tables_at(const struct recall_kv_options *options, const struct policy_model *model,
                         int32_t n_token);
pith_status recall_work_at(const struct recall_kv_options *options,
                           const struct policy_model *model, int32_t n_thread, int32_t n_token,
                           int32_t n_guest, int64_t *bytes, pith_error *err);

struct recall_tier;  /* an engine's */
struct recall_store; /* what was evicted of one sequence */

/* INVALID, FORMAT and UNSUPPORTED (the file is something else), the statuses of the statistics,
   NOMEM, each a sentence. Where the system does not give the file (no directory, no right, a full
   disk) the tier has none. Where it fails later nothing more is written there. Either is said once
   (pi_log), and what is lost is counted. */
/* The tier's pages of a layer are where the layer is. On a GPU they are in its memory, if that has
   room for them beside all pages of the cache `beside` (NULL: none). Else they are in pinned memory
   of the host, up to a limit. Beyond it they are in the host's memory, as for other layers. */
pith_status recall_tier_create(const struct recall_kv_options *o, const struct policy_model *model,
                               const struct kv_cache *beside, int32_t n_thread,
                               struct recall_tier **out, pith_error *err);
void recall_tier_free(struct recall_tier *tier); /* every store is freed before */

pith_status recall_store_create(struct recall_tier *tier, struct recall_store **out,
                                pith_error *err);
void recall_store_free(struct recall_store *store);
/* A copy that shares what is stored. */
pith_status recall_store_fork(const struct recall_store *store, struct recall_store **out,
                              pith_error *err);
/* Forgets what was evicted at positions >= n_token. */
void recall_store_truncate(struct recall_store *store, int32_t n_token);

/* Before a lane of kv loses all entries but those at slots [n_kept], ascending: takes copies of the
   others. They are as stored or in the tier's type. Nothing fails: what has no room pushes out what
   came first, to the file or for good, and is counted. Different lanes at the same time. */
void recall_store_remember(struct recall_store *store, const struct kv_seq *kv, int32_t layer,
                           int32_t head, const int32_t *kept, int32_t n_kept, int32_t thread);
/* The same of one entry that is about to be overwritten, by one thread alone. */
void recall_store_remember_one(struct recall_store *store, const struct kv_seq *kv, int32_t layer,
                               int32_t head, int32_t slot);

/* Memory for recalls by n_tok tokens, before a pass. NOMEM. */
pith_status recall_tier_reserve(struct recall_tier *tier, int32_t n_tok, pith_error *err);

/* The queries of a recalling pass in the lane of one KV head, after rope. */
struct recall_query {
    int32_t layer;
    int32_t head;
    int32_t n_tok;
    int32_t n_group;
    int32_t pos0; /* position of the first query */
    const float
        *q; /* query (t, g) at q + t * q_stride + g * dim_k; NULL: the device has them alone,
                       and value is given */
    struct pi_at q_at; /* the same on the layer's device; none: the host has them alone */
    size_t q_stride;
    const struct kv_seq *own; /* whose lane the queries read; of RECALL_ATTENTION */
    const float *value; /* scores of the row in memory, of recall_tier_ask; NULL: there are none */
};

/* Empties the lane of guests and fills it with at most n_most of the store's entries, ascending by
   position. They are the ones that the queries want most; guests has the room (kv_lane_clear,
   kv_seq_reserve). Depends on what was stored and the queries alone. Different lanes at the same
   time. Returns the number of guests. */
int32_t recall_store_choose(struct recall_store *store, const struct recall_query *query,
                            struct kv_seq *guests, int32_t n_most, int32_t thread);

/* Whether entries of a lane are in the tier. */
bool recall_store_has(const struct recall_store *store, int32_t layer, int32_t head);
/* Whether the layer's device can score by the query (q_at): the tier's pages of the layer are
   there, and none in the file. */
bool recall_can_ask(const struct recall_store *store, const struct recall_query *query);
/* A question that it answers. */
struct recall_ask {
    struct recall_store *store;
    struct recall_query query;
    const struct kv_seq
        *guests; /* NULL: query.value is wanted. Else missed, as recall_store_missed */
    float missed;
};
/* Answers n questions of one layer, all of one kind, with one wait. Values last until the next
   call: of RECALL_ASK_MOST questions at most. */
#define RECALL_ASK_MOST 64
void recall_tier_ask(struct recall_tier *tier, struct recall_ask *ask, int32_t n);

/* The largest score that this thread's last choice saw in memory. */
float recall_tier_best(const struct recall_tier *tier, int32_t thread);

/* With RECALL_ATTENTION: the largest share of a query's weight that entries in memory would get
   which are not among the guests. 0 with other scores. Threads as in recall_store_choose. */
float recall_store_missed(const struct recall_store *store, const struct recall_query *query,
                          const struct kv_seq *guests, int32_t thread);

struct recall_counts {
    int64_t n_stored;  /* entries of all lanes that are in the tier */
    int64_t n_lost;    /* of those that were evicted: no longer there */
    int64_t ram_bytes; /* of the store's pages */
    int64_t file_bytes;
};
void recall_store_count(const struct recall_store *store, struct recall_counts *out);

/* Where the tier's memory goes, of all stores, in bytes. */
struct recall_parts {
    int64_t pages;  /* that hold entries, each counted once, and those that held some */
    int64_t there;  /* of them: in memory of GPUs */
    int64_t tables; /* what finds entries, in memory and in the file */
    int64_t work;   /* what choosing among them takes, as far as it was used */
    int64_t file;   /* of the file, which is no memory */
};
void recall_tier_parts(const struct recall_tier *tier, struct recall_parts *out);

#endif
