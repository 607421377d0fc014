/*
 * forward.h - the pass: tokens in, hidden states out, on the KV store. It knows no family and no
 * policy by name; the model's tensors decide its steps.
 */
#ifndef PI_FORWARD_H
#define PI_FORWARD_H

#include "kv/kv.h"
#include "model/shape.h"

/* A stretch of layers on one device. The first one also has the embeddings. */
struct pi_stage {
    struct pi_device *device;
    int32_t begin, end; /* layers; none in a stage of the output alone */
    bool output;        /* it has the output matrix: the last one */
};

struct pi_stages {
    int32_t n;
    struct pi_stage stage[KV_PART_MOST];
    pith_progress_fn *progress; /* while weights are packed for them; NULL: not called */
    void *progress_user;
};

/* Tokens of one sequence in a pass. Room for them was reserved in kv. */
struct pi_pass_item {
    struct kv_seq *kv;
    const int32_t *tokens; /* [n_tok] */
    int32_t n_tok;
    int32_t pos0;   /* position of the first */
    void *owner;    /* the caller's own, for the tap and the watch; the pass does not look at it */
    bool watched;   /* the watch, where there is one, is shown the item's attention weights */
    int32_t n_read; /* with a reader: the item's first n_read tokens attend to the entries it
                       selects, in chunks of its size, the last one shorter. Later tokens, and
                       without a reader all, attend to everything */
    struct kv_seq *guests; /* entries that are read before the lane's own, kv_attend_job.guests;
                              NULL: none */
    bool recall;           /* the recaller fills guests anew in each layer: there is room */
};

/* A layer's results for the tokens of one item, before keys and values are stored or behind the
   attention. Rows that a tap does not want may be NULL. */
struct pi_pass_tap_rows {
    const struct pi_pass_item *item;
    int32_t layer;
    const float *h;     /* [n_tok][n_embd] the layer's input after its norm */
    const float *q_pre; /* [n_tok][n_head][dim_k] before rope, after bias and norm */
    const float *q;     /* [n_tok][n_head][dim_k] after rope */
    const float *k;     /* [n_tok][n_head_kv][dim_k] after rope */
    const float *v;     /* [n_tok][n_head_kv][dim_v] */
    const float *out;   /* [n_tok][n_head][dim_v] of the attention; NULL before it */
};

/* Called on the thread that runs the pass; the rows are valid during the call. */
typedef void pi_pass_tap_fn(void *user, const struct pi_pass_tap_rows *rows);

/* Which of them, or'ed. Each takes time where layers are on a GPU, as the host waits for it. */
enum {
    PI_TAP_H = 1 << 0,
    PI_TAP_Q_PRE = 1 << 1,
    PI_TAP_Q = 1 << 2,
    PI_TAP_K = 1 << 3,
    PI_TAP_V = 1 << 4,
    PI_TAP_ALL = (1 << 5) - 1
};

struct pi_pass_tap {
    pi_pass_tap_fn *fn;       /* before keys and values are stored; NULL: none */
    pi_pass_tap_fn *attended; /* behind the layer's attention, where keys lack their centre */
    /* The rows of items in a layer that fn wants; 0: it is not called. NULL: all. */
    uint32_t (*wants)(void *user, const struct pi_pass_item *items, int32_t n, int32_t layer);
    void *user;
};

/* The same of all items of a pass, on the device. Item i's first token has row row0[i]. */
struct pi_pass_rows {
    const struct pi_pass_item *items; /* [n_item] */
    int32_t n_item;
    const int32_t *row0;
    int32_t layer;
    struct pi_at q_pre; /* [n_tok][n_head][dim_k]; none where it was not asked for */
    struct pi_at q;     /* [n_tok][n_head][dim_k] */
};

/* A listener for rows of the device. */
struct pi_pass_learner {
    void *user;
    bool before_rope; /* it wants q_pre */
    /* Once a layer, before keys and values are stored. Its calls on the stream may use the rows. */
    void (*rows)(void *user, struct pi_stream *stream, const struct pi_pass_rows *rows);
};

/* A lane of a watched item in a layer. */
struct pi_pass_watched {
    const struct pi_pass_item *item;
    int32_t layer;
    int32_t head; /* KV head */
    int32_t slot; /* of the item's first token's entry */
    /* For plan to fill: what the device notes of the lane's weights. */
    int32_t n_note;
    struct kv_note note[KV_NOTE_ROOM];
    bool rows; /* attended is shown them */
};

/* The attention of one token's queries to the entries of one lane, right after it was computed. */
struct pi_pass_attention {
    const struct pi_pass_item *item;
    int32_t layer;
    int32_t head; /* KV head */
    int32_t t;    /* the token, of the item's */
    int32_t
        n; /* the lane's first entries, which the token may see; its others are of later tokens */
    int32_t slot;        /* of the token's own entry */
    const float *weight; /* [n_group][stride] softmax weights */
    size_t stride;
    const float *out; /* [n_group][dim_v] */
};

/* A listener for the weights of watched items. */
struct pi_pass_watch {
    void *user;
    /* Once a layer with the lanes of all watched items, before anything attends. */
    void (*plan)(void *user, struct pi_pass_watched *lanes, int32_t n);
    /* Shows the rows of a lane that asked for them, on the host. One thread calls it for every
       token of a lane in order; calls for several lanes run at the same time. thread is below
       n_thread. It is not called once a layer with all lanes, because the weights of a layer
       are all lanes' tokens times their entries. Only a tile of tokens of one lane is there at a
       time. The memory that a points to is valid during the call. NULL: no lane asks. */
    void (*attended)(void *user, const struct pi_pass_attention *a, int32_t thread);
    /* Once a layer with the same lanes, when all have attended on the stream. NULL: nothing. */
    void (*finished)(void *user, struct pi_stream *stream, const struct pi_pass_watched *lanes,
                     int32_t n);
    int32_t n_thread; /* that show it rows, at most the pass's, which 0 means */
};

/* Tokens of an item that read the same entries in one lane. */
struct pi_pass_chunk {
    const struct pi_pass_item *item;
    int32_t index; /* of the chunk in the pass */
    int32_t layer;
    int32_t t0;        /* its first token, of the item's */
    int32_t n_tok;     /* 1 .. the reader's chunk */
    const float *q;    /* after rope: query (t, h) at q + t * q_stride + h * dim_k, t from 0 for t0;
                       NULL where the reader does not look */
    struct pi_at q_at; /* the same on the device */
    size_t q_stride;
    int32_t cap;     /* most slots of a lane */
    int32_t *slots;  /* [n_head_kv][cap] that are read, ascending, the chunk's own included */
    int32_t *n_slot; /* [n_head_kv]; -1: everything */
    struct kv_attend_chosen *chosen; /* [n_head_kv] where the slots are on the device; each is none
                                        where select is called */
    float *out;                      /* likewise output (t, h), behind the attention; else NULL */
    struct pi_at out_at;             /* the same on the device */
    size_t out_stride;
};

/* A policy that chooses what is read. */
struct pi_pass_reader {
    void *user;
    int32_t chunk; /* most tokens of a chunk */
    /* Whether select looks at the queries of these chunks; NULL: always. Else they stay on the
       device. */
    bool (*looks)(void *user, const struct pi_pass_chunk *chunks, int32_t n);
    /* Once a layer with the chunks of all items, after the layer's keys are stored and before
       anything attends: fills slots and n_slot. */
    void (*select)(void *user, const struct pi_pass_chunk *chunks, int32_t n);
    /* After the layer's attention, if some lane read a part: the device changes outputs. True: the
       host is to change others. NULL: nothing, and it is. */
    bool (*blended)(void *user, const struct pi_pass_chunk *chunks, int32_t n);
    /* Then: it may change the outputs of the lanes of which a part was read. NULL: nothing. */
    void (*attended)(void *user, const struct pi_pass_chunk *chunks, int32_t n);
};

/* An item that recalls in a layer. */
struct pi_pass_asked {
    const struct pi_pass_item *item;
    int32_t layer;
    const float *q;    /* after rope: query (t, h) at q + t * q_stride + h * dim_k; NULL where the
                       recaller does not look */
    struct pi_at q_at; /* the same on the device */
    size_t q_stride;
};

/* A policy that brings entries back. */
struct pi_pass_recaller {
    void *user;
    /* Whether choose looks at the queries of these items; NULL: always. Else they stay on the
     * device.
     */
    bool (*looks)(void *user, const struct pi_pass_asked *items, int32_t n);
    /* Once a layer with all items with `recall`, after the layer's keys are stored and before
       anything attends. It may change the lanes of the items' guests alone. */
    void (*choose)(void *user, const struct pi_pass_asked *items, int32_t n);
};

/* The new entries of one lane: an item's tokens, token t's at pi_pass_written_slot. */
struct pi_pass_written {
    const struct pi_pass_item *item;
    int32_t layer;
    int32_t head;   /* KV head */
    int32_t slot;   /* of the first token's entry, which can have taken another one's place */
    int32_t len;    /* of the lane now; entries of later tokens are its last */
    const float *k; /* key of token t at k + t * k_stride, as it was before rope */
    size_t k_stride;
    const float *v; /* value of token t at v + t * v_stride */
    size_t v_stride;
    const float *h; /* [n_tok][n_embd] the layer's input to the projections, after the norm */
};

static inline int32_t pi_pass_written_slot(const struct pi_pass_written *w, int32_t t)
{
    return t == 0 ? w->slot : w->len - w->item->n_tok + t;
}

/* The same of all items of a pass, on the device: rows as pi_pass_rows has them. */
struct pi_pass_entries {
    const struct pi_pass_item *items; /* [n_item] */
    int32_t n_item;
    const int32_t *row0;
    const struct kv_append *append; /* [n_item][n_head_kv] where they went */
    struct pi_at k_pre;             /* [n_tok][n_head_kv][dim_k] */
    struct pi_at h;                 /* [n_tok][n_embd] */
};

/* A listener for entries that are written. */
struct pi_pass_writer {
    void *user;
    /* Called once a layer with the lanes of all items, right after keys and values are stored and
       before anything attends. An item's lanes follow each other. The memory that lanes point to is
       valid during the call. */
    void (*written)(void *user, const struct pi_pass_written *lanes, int32_t n);
    /* In its place, where rows stay on the device; NULL: they do not. */
    void (*entries)(void *user, struct pi_stream *stream, const struct pi_pass_entries *entries);
};

/* Scratch of one pass; one thread at a time uses it, and its workers through it. */
struct pi_pass;

/* A pass of at most max_tok tokens, in these stages; NULL: all on the geometry's device. model is
   borrowed until pi_pass_free. NOMEM. */
pith_status pi_pass_create(const struct pith_model *model, const struct kv_geometry *geometry,
                           const struct pi_stages *stages, int32_t max_tok, int32_t n_thread,
                           struct pi_pass **out, pith_error *err);
void pi_pass_free(struct pi_pass *pass);
/* Bytes of its device that a stage's rows take, about. */
int64_t pi_pass_stage_bytes(const struct pith_model *model, const struct pi_stage *stage,
                            int32_t max_tok);

/* From now on keys are stored less their lane's centre (centre.h). UNSUPPORTED, NOMEM. */
pith_status pi_pass_centre(struct pi_pass *pass, pith_error *err);

/* From now on the tap, which is copied, sees every layer of every item; NULL ends it. Layers come
   in order, and items in order within a layer. Queries before rope take memory of their own
   meanwhile. NOMEM: nothing has changed. No pass may be running. */
pith_status pi_pass_set_tap(struct pi_pass *pass, const struct pi_pass_tap *tap, pith_error *err);

/* From now on the learner, which is copied, is told of the rows of every layer; NULL ends it. As
   pi_pass_set_tap. */
pith_status pi_pass_set_learner(struct pi_pass *pass, const struct pi_pass_learner *learner,
                                pith_error *err);

/* From now on watched items are shown to *watch, which is copied; NULL ends it. Without one, or for
   items that are not watched, there is no cost and the bits are the same. No pass may be running.
   NOMEM: nothing has changed. */
pith_status pi_pass_set_watch(struct pi_pass *pass, const struct pi_pass_watch *watch,
                              pith_error *err);

/* Room for the weights of lanes of at most `longest` entries, which a pass with watched items needs
   to be there. NOMEM leaves the old room. */
pith_status pi_pass_reserve_watch(struct pi_pass *pass, int64_t longest, pith_error *err);
/* Bytes of that room so far, and at most for a pass on one device. */
size_t pi_pass_watched_bytes(const struct pi_pass *pass);
size_t pi_pass_watch_bytes(const struct pi_hparams *hp, int32_t n_thread, int64_t longest);

/* From now on the reader, which is copied, selects the entries for items with n_read > 0; NULL ends
   it. No pass may be running. NOMEM: nothing has changed. An item is read or watched, not both. */
pith_status pi_pass_set_reader(struct pi_pass *pass, const struct pi_pass_reader *reader,
                               pith_error *err);

/* Room for up to n_chunk chunks of a pass with at most cap slots selected in a lane. A pass with
   n_read > 0 needs it. NOMEM leaves the old room. */
pith_status pi_pass_reserve_read(struct pi_pass *pass, int32_t n_chunk, int64_t cap,
                                 pith_error *err);

/* From now on the recaller, which is copied, is called for the items with `recall`; NULL ends it.
   No pass may be running. */
void pi_pass_set_recaller(struct pi_pass *pass, const struct pi_pass_recaller *recaller);

/* From now on the writer, which is copied, sees all entries; NULL ends it. Keys before rope take
   memory of their own meanwhile. NOMEM: nothing has changed. No pass may be running. */
pith_status pi_pass_set_writer(struct pi_pass *pass, const struct pi_pass_writer *writer,
                               pith_error *err);

/* Appends the items' keys and values to their lanes and leaves the hidden states of all tokens, in
   item order, for pi_pass_logits. Token ids are in range, the sum of n_tok is at most max_tok.
   False: it was asked to stop, and some lanes have the entries, others do not. */
bool pi_pass_run(struct pi_pass *pass, const struct pi_pass_item *items, int32_t n_item);

/* Behind it all that passes asked of the device is done. */
void pi_pass_wait(struct pi_pass *pass);
/* Whether what was waited for has its effect: pi_device.check. */
pith_status pi_pass_check(const struct pi_pass *pass, pith_error *err);

/* Asked before each block of a pass, of which n_done of n blocks are done; false stops it. */
typedef bool pi_pass_ask_fn(void *user, int32_t n_done, int32_t n);
/* From now on fn is asked in each pass; NULL ends it. */
void pi_pass_set_ask(struct pi_pass *pass, pi_pass_ask_fn *fn, void *user);

/* From now on rank 0 alone has whole rows of logits (base/ranks.h): other ranks' say nothing. */
void pi_pass_set_collect(struct pi_pass *pass);

/* out[i] = hidden state [n_embd], after the last norm, of the token with index rows[i] in the last
   pass; n <= max_tok. */
void pi_pass_hidden(struct pi_pass *pass, const int32_t *rows, int32_t n, float *out);

/* out[i] = logits [n_vocab] of the token with index rows[i] in the last pass; n <= max_tok and
   PI_PASS_LOGITS. */
#define PI_PASS_LOGITS 64
void pi_pass_logits(struct pi_pass *pass, const int32_t *rows, int32_t n, float *out);
/* The best tokens in the place of logits, which go to keep[i] on the device. Only where the device
   has `best`, or ranks keep their parts of rows, and the pass computes all logits of a row. room
   [n][n_vocab] is scratch. */
bool pi_pass_finds_best(struct pi_pass *pass);
void pi_pass_best(struct pi_pass *pass, const int32_t *rows, int32_t n, float *room,
                  const struct pi_at *keep, struct pi_best *const *out);
/* Such a row, to the host. Over ranks all of them ask for it. */
void pi_pass_fetch_row(struct pi_pass *pass, struct pi_at row, float *out);
struct pi_device *pi_pass_device(struct pi_pass *pass);
/* From now on the pass computes only the first n logits of each row, and the rest of the row is
   arbitrary. 0: all. */
void pi_pass_limit_logits(struct pi_pass *pass, int32_t n);

#endif
