/*
 * pass.h - the inside of a pass, for forward.c and the blocks alone. A pass is a list of stages,
 * each of them a stretch of layers on one device with its stream, its weights and its rows. Blocks
 * see one stage: a block's run() is a program of its device's operations.
 */
#ifndef PI_PASS_H
#define PI_PASS_H

#include "base/mem.h"
#include "base/threads.h"
#include "model/forward.h"
#include "model/placed.h"

/* Tokens of an item that attend together: a chunk of the reader's, or an item's tokens that are
   neither read in part nor watched. Its attention is a number of tiles. */
struct pi_pass_segment {
    int32_t item;
    int32_t t0; /* its first token, of the item's */
    int32_t n_tok;
    int32_t chunk; /* -1: not the reader's */
};

/* Of the experts' block (moe.c). A row is a token's place with one of its experts. */
struct pi_pass_moe {
    struct pi_at x;        /* [n_row][n_embd] inputs, then outputs */
    struct pi_at gate, up; /* [n_row][n_ff] */
    struct pi_int8 act;    /* [n_row] of either */
    struct pi_moe_places places;
    struct pi_at logit, rank;            /* [n_tok][n_expert] of the router */
    struct pi_at shared_weight;          /* [n_tok] of the shared expert, where it has one */
    struct pi_at shared_gate, shared_up; /* [n_tok][n_ff_shared] */
};

/* The scratch of latent attention (latent.c), beside q, k, v and att, which have the lane's
   shape. */
struct pi_pass_latent {
    struct pi_at head; /* [max_tok][n_head][dim_key + n_rot] queries, then
                          [max_tok][n_head][dim_out] */
    struct pi_at raw;  /* [max_tok][n_rank + n_rot] the lane's vectors as they are projected */
    struct pi_at low;  /* [max_tok][n_query] */
};

/* Rows that the host looks at, and where they go from a device that it cannot look into. */
enum pi_pass_room {
    PI_ROOM_H,
    PI_ROOM_Q,
    PI_ROOM_Q_PRE,
    PI_ROOM_K,
    PI_ROOM_K_PRE,
    PI_ROOM_V,
    PI_ROOM_ATT,
    PI_N_ROOM
};

/* Where the weights of a watched tile go. */
struct pi_pass_watched_rows {
    struct kv_attend_tap tap;
    struct kv_weight_parts parts;
};

/* Items whose weights are shown. */
struct pi_pass_watching {
    struct pi_pass_watch fn; /* plan NULL: there is none */
    int32_t tile;            /* tokens of an item in one attention call */
    int32_t *items;          /* [max_tok]; NULL without a watch */
    int32_t n;
    struct pi_pass_watched *lanes; /* [max_tok][n_head_kv] of the running layer's */
    int32_t n_thread;              /* that compute watched tiles, of the pass's */
    float *rows;                   /* [n_thread][rows of a tile][stride + numbers beside] */
    size_t stride;
    struct pi_pass_watched_rows *taps; /* [n_thread] */
    float *out;                        /* [n_thread][tile][n_head][dim_v] likewise a room */
};

/* The chunks of the pass and their entries. */
struct pi_pass_reading {
    struct pi_pass_reader fn;    /* select NULL: everything is read */
    struct pi_pass_chunk *chunk; /* [cap_chunk] of the running pass */
    int32_t n_chunk;
    int32_t part_most; /* most tokens of a chunk in one attention call */
    int32_t *slots;    /* [cap_chunk][n_head_kv][cap_slot] of the running layer, ascending */
    int32_t *n_slot;   /* [cap_chunk][n_head_kv] -1: everything */
    struct kv_attend_chosen *chosen; /* likewise */
    int32_t cap_chunk;
    int64_t cap_slot;
};

struct pi_pass_recalling {
    struct pi_pass_recaller fn;  /* choose NULL: no recall */
    struct pi_pass_asked *items; /* [max_tok] that recall */
    int32_t n;
};

/* The limits of a pass, set when it is created; a reader and a limit of logits change the last
   two. */
struct pi_pass_plan {
    struct kv_geometry geometry; /* of the cache */
    int32_t max_tok;
    int32_t n_thread;
    int32_t tile;       /* query tokens of one attention call */
    size_t widest;      /* values of the widest input of a product */
    size_t attend_size; /* bytes of the stream's scratch for calls of attention */
    int32_t n_logit;    /* logits of a row that are made, pi_pass_limit_logits; 0: all */
};

/* The running pass, and where it is. */
struct pi_pass_now {
    const struct pi_pass_item *items; /* borrowed */
    int32_t n_item;
    int32_t n_tok;
    const struct pi_layer *layer;
    const struct pi_placed_layer *w;    /* the layer's matrices */
    const struct pi_layer_block *block; /* NULL: none runs */
};

/* Rows of numbers. Only the last are on the host. */
struct pi_pass_buffers {
    struct pi_at x;        /* [max_tok][n_embd] the residual stream */
    struct pi_at h;        /* [max_tok][n_embd] normed input of a block, then its output */
    struct pi_int8 act;    /* [max_tok] of the widest input */
    struct pi_at block;    /* [max_tok][the most of all blocks] the rows of the running block: q, k,
                              v, att, q_gate, or another block's */
    struct pi_at q;        /* [max_tok][n_head][dim_k] */
    struct pi_at k;        /* [max_tok][n_head_kv][dim_k] */
    struct pi_at v;        /* [max_tok][n_head_kv][dim_v] */
    struct pi_at att;      /* [max_tok][n_head][dim_v] */
    struct pi_at q_gate;   /* [max_tok][n_head][2][dim_k] of gated attention: query and gate */
    struct pi_at q_pre;    /* [max_tok][n_head][dim_k] queries before rope; none without a tap */
    struct pi_at k_pre;    /* [max_tok][n_head_kv][dim_k] keys before rope; none without a writer */
    struct pi_at cs;       /* [max_tok][n_pair][2] cosines and sines of the positions */
    struct pi_at local_cs; /* the same of model->rope_local; none: there is none */
    struct pi_at logits;   /* [max_tok][n_vocab]; none where the device writes to the host's */
    float *room[PI_N_ROOM]; /* [max_tok] rows; NULL where the host looks into the device */
};

/* Which tokens a pass has. The first three are on the device, the others on the host. */
struct pi_pass_ids {
    struct pi_at token; /* int32_t [max_tok] ids */
    struct pi_at pos;   /* int32_t [max_tok] */
    struct pi_at index; /* int32_t [max_tok] rows that are picked */
    int32_t *token_of;  /* [max_tok] */
    int32_t *pos_of;    /* [max_tok] */
    int32_t *row0;      /* [max_tok + 1] first row of an item */
};

/* Attention over the lanes (attention_lanes.c). */
struct pi_pass_lanes {
    struct pi_at centre;      /* [kv_layer][n_head_kv][dim_k] of stored keys (centre.h); none: 0 */
    struct kv_append *append; /* [max_tok][n_head_kv] of the running layer */
    struct pi_pass_segment *segment; /* [max_tok] */
    int32_t n_segment;
    int32_t *tile0; /* [max_tok + 1] first attention tile of a segment */
    int32_t n_part; /* calls that share the query heads of a group in the running layer */
};

struct pi_pass_ffn {
    struct pi_at gate, up; /* [max_tok][n_ff] */
};

struct pi_pass_delta {
    struct pi_delta_parts parts;
    struct pi_delta_item *item; /* [max_tok] of the running layer; NULL: the model has none */
};

/* A stage. The pass is its first one. */
struct pi_pass {
    struct pi_pass *next; /* owned; NULL: the last, which makes the logits */
    struct pi_stage stage;
    const struct pith_model *model;
    struct pi_device *device; /* the stage's */
    struct pi_stream *stream;
    const struct pi_placed *placed; /* the stage's weights on the device; a use of them */
    struct pi_pass_plan plan;
    struct pi_pass_now now;
    struct pi_pass_buffers rows;
    struct pi_pass_ids ids;
    struct pi_pass_lanes lanes;
    struct pi_pass_ffn ffn;
    struct pi_pass_moe moe;
    struct pi_pass_delta delta;
    struct pi_pass_latent latent;
    struct pi_pass_tap tap;         /* without functions: there is none */
    struct pi_pass_learner learner; /* rows NULL: there is none */
    struct {
        pi_pass_ask_fn *fn; /* NULL: nothing stops a pass */
        void *user;
    } ask;
    struct {
        struct pi_pass_writer fn;      /* written NULL: there is none */
        struct pi_pass_written *lanes; /* [max_tok][n_head_kv] of the running layer */
    } writer;
    struct pi_pass_watching watching;
    struct pi_pass_reading reading;
    struct pi_pass_recalling recalling;
    struct {
        struct pi_step_layer *layer; /* [n_layer]; NULL: passes go by the blocks */
        struct kv_append *append;    /* [n_layer][n_head_kv] */
        bool has_logits;             /* of the only token of the last pass, not capped */
    } step;
    bool collects; /* pi_pass_set_collect was called */
};

/* The stages of a pass, in order. */
#define PI_EACH_STAGE(stage, pass)                                                                 \
    for (struct pi_pass *stage = (pass); stage != NULL; stage = stage->next)

/* forward.c. Replaces the stream by one whose calls of attention have attend_size bytes of scratch.
   NOMEM leaves the old one. */
pith_status pi_pass_open_stream(struct pi_pass *pass, size_t attend_size, pith_error *err);

/* Of ranks (base/ranks.h): what this one computed becomes what all did. n_row rows of x have n_unit
   units of `unit` floats in all, or act its int8 copy; out rows of n floats. */
void pi_pass_gather(struct pi_at x, const struct pi_int8 *act, int32_t n_row, int32_t n_unit,
                    int32_t unit);
void pi_pass_gather_rows(struct pi_at out, int32_t n_row, int32_t n);
/* Likewise of rows of logits. */
void pi_pass_gather_logits(const struct pi_pass *pass, struct pi_at out, int32_t n_row);

/* The output matrix, of which a limit leaves the first rows. */
struct pi_weight pi_pass_head(const struct pi_pass *pass);

/* n_row * row_len elements of scratch; NULL, and *ok false, without memory or when any part of the
   size overflows. Of the host and of the pass's device. */
void *pi_pass_alloc(int32_t n_row, size_t row_len, size_t size, bool *ok);
struct pi_at pi_pass_place(const struct pi_pass *pass, int32_t n_row, size_t row_len, size_t size,
                           bool *ok);

/* The rows of the pass as the host sees them, each of n floats. Valid until the next look. */
float *pi_pass_look(const struct pi_pass *pass, struct pi_at rows, size_t n,
                    enum pi_pass_room room);

/* ---- product.c ---- */

/* A body over the rows of the pass, each of about n floats. */
void pi_pass_rows(const struct pi_pass *pass, enum pi_rows_body body, const void *args, int64_t n);

/* out[i] = w[i] times the activations x [n_tok][n_col], n <= 3, whose int8 copy is up to date where
   a matrix reads it. */
void pi_pass_product(const struct pi_pass *pass, struct pi_at x, int32_t n_tok,
                     const struct pi_weight *const *w, const struct pi_at *out, int32_t n);

/* The int8 copy of an input of a matrix, none where it reads floats. */
struct pi_int8 pi_pass_act(const struct pi_pass *pass, const struct pi_weight *w);
struct pi_temperature pi_pass_temperature(const struct pi_pass *pass);
bool pi_matrix_reads_int8(const struct pi_matrix *w);

/* The next part of a block's rows: n floats of each token. */
struct pi_at pi_pass_take(const struct pi_pass *pass, struct pi_at *memory, size_t n);

/* A vector of the model on the device. */
static inline struct pi_at pi_pass_vector(const struct pi_pass *pass, const float *vector)
{
    return pi_placed_vector(pass->placed, vector);
}

/* ---- fetch.c ---- */

/* Prefetches the experts of the running layer that have rows, where they lie in a file. */
void pi_pass_fetch_experts(const struct pi_pass *pass);

/* ---- attention.c ---- */

/* The attention of the running layer, whose rows the learner and the tap see before it, and a tap
   behind it. */
void pi_pass_attend(struct pi_pass *pass);

/* The cosines and sines of the running layer's rotation; none: it has none. */
struct pi_at pi_pass_turns(const struct pi_pass *pass);

/* ---- attention_lanes.c ---- */

/* Chooses how many tokens attend together; returns the scratch of a thread. */
size_t pi_pass_attention_plan(struct pi_pass *pass);

/* The buffers of attention for up to max_tok tokens, beside the kernels' scratch; freed by the
   other. */
bool pi_pass_attention_alloc(struct pi_pass *pass);
void pi_pass_attention_free(struct pi_pass *pass);

/* After the items' rows were laid out: which tokens attend together. */
void pi_pass_attention_lay_out(struct pi_pass *pass);

/* A chunk's place among the lanes that the reader chose for, and the slots that it reads there. */
size_t pi_pass_read_unit(const struct pi_pass *pass, int32_t chunk, int32_t head);
int32_t *pi_pass_read_slots(const struct pi_pass *pass, int32_t chunk, int32_t head);

/* The running layer: keys and values to the lanes, attention to att. */
void pi_pass_attention_run(struct pi_pass *pass);

/* Query rows of a call over a chunk that reads everything: their sums of values still stay in a
   cache of the second level. */
#define PI_PASS_PART_ROWS 1024

/* ---- attention_policies.c ---- */

/* Shows the writer what was appended to n lanes. */
void pi_pass_show_written(struct pi_pass *pass, int32_t n);
/* The recaller fills the guests of the items that recall. */
void pi_pass_recall(struct pi_pass *pass);
/* The reader chooses for every chunk, and has a say in what attention gave them. */
void pi_pass_select(struct pi_pass *pass);
void pi_pass_show_attended(struct pi_pass *pass);
/* The watch says what is noted in the lanes of watched items. A call in one of them gets that, and
   rows for its weights; n_later entries of the lane are of tokens behind the call's. Afterwards its
   tokens, from t0 of the item's on, are shown where the lane wants rows. */
void pi_pass_plan_watch(struct pi_pass *pass);
void pi_pass_watch_job(const struct pi_pass *pass, const struct pi_pass_watched *lane,
                       int32_t n_later, int32_t thread, struct kv_attend_job *job);
void pi_pass_show_tile(const struct pi_pass *pass, const struct pi_pass_watched *lane, int32_t t0,
                       const struct kv_attend_job *job, int32_t thread);
/* Floats of a thread's watched rows: weights, maxima and sums, and for each part its end and a
   factor of each row. At most (n_row + 1) * (2 * stride + 16). */
size_t pi_pass_watch_len(size_t n_row, size_t stride);

#endif
