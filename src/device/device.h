/*
 * device.h - where a model's numbers are: one table of operations on memory that belongs to a
 * device, which the host need not be able to see. Passes (model/) and the store (kv/) compute by
 * these alone. device/cpu/ is the table of this machine's processor, device/checked/ one for tests.
 *
 * Addresses. An address of a device is no pointer: the host adds to it and hands it to operations.
 * Only where in_host is set, the host may use it as one.
 *
 * Order. Operations on one stream have the effects of running in the order of the calls. Two
 * streams have no order. A call without a stream comes after all earlier calls on any stream of its
 * device, and is done when it returns. alloc, map, pack, lend_out and open wait for nothing.
 *
 * Host memory. Pointers in an operation's arguments are host memory, and so are pointers in its
 * structs: lists, matrices' structs, tables and positions of lanes. The operation reads all of it
 * before it returns, and writes there before it returns. The caller may then overwrite it, change
 * the tables, or free it. There are two exceptions. Data of a model (ropes, sinks, rows of its
 * file) never changes and outlives its streams, so that a device may keep the pointer. And
 * `clipped` of a cache is up to date after wait or note_clipped.
 *
 * Device memory. An operation on a stream may use device memory later, up to the next download from
 * the stream, wait, close, or call without a stream. The host gives no memory back that a stream
 * still uses: free, unmap, drop and unpack are calls without one.
 *
 * Threads. One thread at a time calls on a stream; other threads may call on others meanwhile.
 * Operations of the store without a stream may be called by several threads at once, on different
 * lanes. Functions that an operation calls back (kv_attend_list) run on threads of its choice and
 * may download.
 *
 * Every operation has one result, for any order of work on the device, and rows do not depend on
 * each other. On devices of the processor's kind, cpu/matmul.h, cpu/attend.h and cpu/vec.h fix the
 * order of sums. On one device of another kind the order is always the same.
 */
#ifndef PI_DEVICE_H
#define PI_DEVICE_H

#include <stdatomic.h>

#include "base/mem.h"
#include "cpu/matmul.h"
#include "tensor/rope.h"

struct pi_device;
struct pi_stream;
struct pith_machine;

/* ---- addresses ---- */

/* at 0: none. */
struct pi_at {
    uintptr_t at;
};

static inline bool pi_at_some(struct pi_at a)
{
    return a.at != 0;
}

static inline struct pi_at pi_at_add(struct pi_at a, size_t n_byte)
{
    return (struct pi_at){a.at + n_byte};
}

/* Number i of values of 4 bytes. */
static inline struct pi_at pi_at_item(struct pi_at a, size_t i)
{
    return pi_at_add(a, i * sizeof(float));
}

/* ---- weights and rows ---- */

/* A matrix as the device packs it; shapes as in pi_matrix. */
struct pi_weight {
    enum pi_dtype type;
    int32_t n_row, n_col, n_group;
    size_t group_bytes; /* of the host's packing */
    struct pi_at data;  /* none: the layer has no such matrix */
    bool floats;        /* its device reads no int8 copies */
};

/* True when products read the int8 copy of their input. */
static inline bool pi_weight_reads_int8(const struct pi_weight *w)
{
    return !w->floats && !pi_matmul_is_float(w->type);
}

/* The int8 copy of rows, as in pi_act; q none: no copy. */
struct pi_int8 {
    struct pi_at q, scale, sum16;
};

/* ---- bodies of rows: what happens to a row between two products. t is its number ---- */

enum pi_rows_body {
    PI_ROWS_EMBED,
    PI_ROWS_BETWEEN,
    PI_ROWS_PICK,
    PI_ROWS_CAP,
    PI_ROWS_QUANTIZE,
    PI_ROWS_QKV,
    PI_ROWS_CENTRE,
    PI_ROWS_OUT,
    PI_ROWS_GATE,
    PI_ROWS_MOE_CHOOSE,
    PI_ROWS_MOE_GATHER,
    PI_ROWS_MOE_HIDDEN,
    PI_ROWS_MOE_SUM,
    PI_ROWS_DELTA_IN,
    PI_ROWS_DELTA_UNIT,
    PI_ROWS_DELTA_OUT,
    PI_ROWS_LATENT_LOW,
    PI_ROWS_LATENT_IN,
    PI_ROWS_LATENT_QUERY,
    PI_ROWS_LATENT_GATHER,
    PI_ROWS_N_BODY
};

/* A token's embedding, and the cosines and sines of its position. */
struct pi_embed_rows {
    struct pi_weight embd;
    const uint8_t *file;           /* rows of embd in host memory, as in files */
    struct pi_at token, pos;       /* int32_t [n_row] */
    const int32_t *tokens;         /* the same as token, of the host */
    float scale;                   /* of embeddings */
    const struct pi_rope *rope[2]; /* of the host; the second may be NULL */
    struct pi_at x;                /* [n_row][embd.n_col]; none: only the turns are made */
    struct pi_at cs[2];            /* [n_row][rope.n_pair][2] */
};

/* x += post_norm(h + bias), then h = norm(x). */
struct pi_between_rows {
    bool leave; /* the first step is done; bias and post_norm may be none */
    struct pi_at x, h, bias, post_norm;
    struct pi_at norm;  /* none: the second step is not done */
    struct pi_int8 act; /* of h */
    int32_t n;
    float eps;
};

/* out[t] = norm(x[index[t]]) */
struct pi_pick_rows {
    struct pi_at x, index, norm, out;
    struct pi_int8 act;
    int32_t n;
    float eps;
};

/* x = cap * tanh(x / cap) */
struct pi_cap_rows {
    struct pi_at x;
    float cap;
    int32_t n;
};

struct pi_quantize_rows {
    struct pi_at x;
    struct pi_int8 act;
    int32_t n;
};

/* The factor of the query of a position: 1 + scale * ln(floor(pos / len) + 1); scale 0: none. */
struct pi_temperature {
    float scale;
    int32_t len;
};

/* Queries and keys: bias, the norm of heads, rotation; values: bias. */
struct pi_qkv_rows {
    struct pi_at q, k, v;
    struct pi_at q_gate; /* [n_row][n_head][2][dim_k] query and gate; none: q has the queries */
    struct pi_at q_pre, k_pre; /* copies before rotation; none: not needed */
    struct pi_at bq, bk, bv, q_norm, k_norm;
    struct pi_at cs; /* none: nothing is rotated */
    const struct pi_rope *rope;
    struct pi_at pos;
    struct pi_temperature temp;
    int32_t n_head, n_head_kv, dim_k, n_v;
    float eps;
};

/* k -= mean, row by row. */
struct pi_centre_rows {
    struct pi_at k, mean; /* [n_row][n], [n] */
    int32_t n;
};

/* Attention's output: times the sigmoid of its gate. */
struct pi_out_rows {
    struct pi_at x;
    struct pi_at q_gate; /* none: there is no gate */
    struct pi_int8 act;
    int32_t n, n_head, dim; /* n of a row of x, dim of a head */
};

enum pi_gate_act { PI_GATE_SILU, PI_GATE_GELU, PI_GATE_OAI };

/* gate = act(gate) * up */
struct pi_gate_rows {
    struct pi_at gate, up;
    struct pi_int8 act;
    enum pi_gate_act fn;
    int32_t n;
};

/* ---- a mixture of experts ---- */

/* From the router's logits to probabilities, numbered as in ARCH.expert_gating_func. */
enum pi_moe_gating {
    PI_MOE_SOFTMAX = 1,        /* over all experts */
    PI_MOE_SIGMOID = 2,        /* of each expert alone */
    PI_MOE_SOFTMAX_CHOSEN = 3, /* over the chosen ones */
};

/* Of an expert's hidden row. */
enum pi_moe_act {
    PI_MOE_SILU, /* silu(gate) * up */
    PI_MOE_OAI,  /* vec.h's oai_mul */
};

#define PI_MOE_MAX_EXPERT 4096
#define PI_MOE_MAX_GROUP 64

/* n_expert 0: the family has none. */
struct pi_moe_rule {
    int32_t n_expert;
    int32_t n_used;       /* of a token, 1 .. n_expert */
    int32_t n_group;      /* equal runs of experts; 1: no choice among groups */
    int32_t n_group_used; /* of a token; together they have n_used experts or more */
    int32_t n_ff;         /* width of an expert */
    int32_t n_ff_shared;  /* width of the expert of all tokens; 0: there is none */
    enum pi_moe_gating gating;
    enum pi_moe_act act;
    bool norm;   /* the chosen experts' weights are divided by their sum */
    float scale; /* what weights are multiplied with at the end */
};

/* Which experts take which rows. A row is a token's place with one of its experts; rows are sorted
   by expert, tokens in order. */
struct pi_moe_places {
    struct pi_at weight; /* [n_tok][n_used], a token's best expert first */
    struct pi_at chosen; /* int32_t [n_tok][n_used] experts */
    struct pi_at row;    /* int32_t [n_tok][n_used] where they stand */
    struct pi_at token;  /* int32_t [n_tok * n_used] of each row */
    struct pi_at first;  /* int32_t [n_expert + 1] first row of an expert */
    struct pi_at busy;   /* int32_t [n_expert] experts with rows, ascending */
    struct pi_at n_busy; /* int32_t */
};

struct pi_moe_choose_rows {
    struct pi_moe_rule rule;
    struct pi_moe_places places; /* weight and chosen are written */
    struct pi_at logit, rank;    /* [n_tok][n_expert] */
    struct pi_at b_router, b_choice;
    struct pi_at h;             /* [n_tok][n_embd] */
    struct pi_at shared_gate;   /* [n_embd]; none: shared_weight stays */
    struct pi_at shared_weight; /* [n_tok] */
    int32_t n_embd;
};

/* Row r gets its token's row of h, or the int8 copy of that, or both. */
struct pi_moe_gather_rows {
    struct pi_moe_places places;
    struct pi_at h, x;        /* x none: only the copy is read */
    struct pi_int8 from, act; /* none: only x is read */
    int32_t n;
};

struct pi_moe_hidden_rows {
    struct pi_moe_places places;
    struct pi_at gate, up, b_gate, b_up; /* biases [n_expert][n], or none */
    struct pi_int8 act;
    enum pi_moe_act fn;
    int32_t n;
};

/* h = the weighted sum of a token's rows, and of the shared expert's, which is in h. */
struct pi_moe_sum_rows {
    struct pi_moe_places places;
    struct pi_at x, h, b_down;
    bool shared;
    struct pi_at shared_weight; /* none: 1 */
    int32_t n, n_used;
};

/* ---- gated delta nets ---- */

/* Of the layers that have one. */
struct pi_delta_shape {
    int32_t n_layer; /* that have one; 0: the rest says nothing */
    int32_t n_key;   /* heads of queries and keys */
    int32_t n_value; /* heads of values, a multiple of n_key */
    int32_t dim;     /* of a key and of a value */
    int32_t n_conv;  /* taps of the convolution */
    bool tiled;      /* value head h has key head h mod n_key; else h / (n_value / n_key) */
};

/* The parts of a delta net for each token. mix is the width of its convolution. */
struct pi_delta_parts {
    struct pi_at u;           /* [n_tok][mix] the projection */
    struct pi_at z;           /* [n_tok][n_value][dim] the gate, then the gated output */
    struct pi_at c;           /* [n_tok][mix + n_value * dim] rows of both together as in a file,
                                 then [n_tok][mix] the convolution's output */
    struct pi_at beta, decay; /* [n_tok][n_value] */
    struct pi_at beta_alpha;  /* [n_tok][2 n_value] the rows of both together */
    struct pi_at kq;          /* [n_tok][n_key] */
};

/* The arguments of all three bodies, and of the steps that do not go row by row. */
struct pi_delta_rows {
    struct pi_delta_shape shape;
    struct pi_delta_parts parts;
    bool mixed;       /* c has u and z together, beta_alpha beta and alpha: */
    bool mixed_gates; /* they are to be split */
    struct pi_at dt, a, norm;
    struct pi_int8 act; /* of z */
    float eps;
};

/* A sequence's tokens, and its part of the state of a layer. */
struct pi_delta_item {
    struct pi_at past;   /* [n_conv - 1][mix] */
    struct pi_at matrix; /* [n_value][dim of a value / 16, rounded up][dim of a key][16] */
    int32_t row0, n_tok;
};

/* ---- latent attention ---- */

struct pi_latent_rows {
    struct pi_at low, query_a_norm;      /* LOW: low = norm(low) [n_tok][n_query] */
    struct pi_at raw, latent_norm, k, v; /* IN: the lane's vectors */
    struct pi_at head;                   /* [n_tok][n_head][dim_key + n_rot] */
    struct pi_at att, q;                 /* IN: to att [n_head][n_tok][dim_key] and q */
    struct pi_at q_pre, k_pre;           /* none: not needed */
    bool wants_v;                        /* v gets a copy of the value */
    struct pi_at cs, pos;
    const struct pi_rope *rope;
    struct pi_temperature temp;
    struct pi_int8 act; /* none: floats are read */
    int32_t n_tok, n_head, n_query, dim_key, n_rot, dim_k, dim_v;
    float eps;
};

/* ---- products ---- */

/* out[i] [n_tok][rows of w[i]] = w[i] times x [n_tok][n_col], up to three matrices of one input. */
struct pi_product {
    struct pi_at x;
    struct pi_int8 act; /* up to date where a matrix reads it */
    int32_t n_tok;
    int32_t n;
    const struct pi_weight *w[3];
    struct pi_at out[3];
};

/* A matrix for each head, slabs of w: x [n_head][n_tok][n_col], row t of head h to
   out + t * stride + h * step. */
struct pi_product_heads {
    struct pi_at x;
    struct pi_int8 act;
    int32_t n_tok, n_head;
    const struct pi_weight *w;
    struct pi_at out;
    size_t stride, step; /* floats */
};

/* One or two matrices of every expert that has rows: x [n_row][n_col], out[i] [n_row][rows]. */
struct pi_product_experts {
    struct pi_moe_places places;
    struct pi_at x;
    struct pi_int8 act;
    int32_t n_row, n, n_expert;
    const struct pi_weight *w[2];
    struct pi_at out[2];
};

/* ---- the choice of a token ---- */

#define PI_BEST 128

/* The best tokens of a row of logits: the higher logit first, of equals the lower id. */
struct pi_best {
    int32_t n; /* PI_BEST, or fewer in a row that has no more; 0: they are not known */
    int32_t id[PI_BEST];
    float logit[PI_BEST];
};

/* They are not known where a logit is not finite. Other rows are refused rarely. */
struct pi_best_rows {
    struct pi_at x;             /* [n_row][n] logits */
    const struct pi_at *keep;   /* [n_row] where a copy of each row goes */
    struct pi_best *const *out; /* [n_row] of the host */
    int32_t n_row, n;
};

/* ---- one token of a whole model ---- */

struct kv_append;

/* A layer of attention and feed-forward; matrices and vectors as in model/layer.h. */
struct pi_step_layer {
    const struct pi_weight *wq, *wk, *wv, *wo, *gate, *up, *down;
    struct pi_at norm, ffn_norm; /* of the inputs of both blocks */
    struct pi_at bq, bk, bv, bo, q_norm, k_norm;
    struct pi_at centre;        /* [n_head_kv][dim_k] that stored keys are less; none: 0 */
    struct pi_at cs;            /* none: nothing is rotated */
    const struct pi_rope *rope; /* NULL likewise */
    const float *sink;          /* [n_head] of the host, or NULL */
};

/* All layers of one token of one sequence, then its logits. */
struct pi_step {
    const struct pi_step_layer *layer; /* [n_layer] */
    int32_t n_layer;
    struct kv_append *append; /* [n_layer][n_head_kv] its entry; the device makes room for it in the
                                 host's tables (kv_append_place) */
    struct pi_at x;           /* [n_embd] its embedding; behind the last layer: what that left */
    struct pi_at q, k, v, att, act; /* scratch */
    struct pi_at pos;               /* int32_t of the device: its position, which pos0 is, too */
    int32_t pos0;
    const struct pi_weight *head; /* to logits, its n_group may be less than all; NULL: none */
    struct pi_at head_norm, logits;
    int32_t n_embd, n_ff, n_head, n_head_kv, dim_k, dim_v;
    struct pi_temperature temp;
    enum pi_gate_act activation;
    float eps, scale, cap; /* scale and cap of attention, as in kv_attend_job */
};

/* ---- the table ---- */

/* The limits of a stream. */
struct pi_stream_shape {
    int32_t n_thread;   /* of the host, at most */
    size_t widest;      /* input of a product */
    size_t attend_size; /* kv_attend_scratch_bytes of the largest call */
};

/* One after the other on one stream. A device of the processor's kind has the host's threads. */
struct pi_stream {
    struct pi_device *device;
    int32_t n_thread;
};

struct kv_append;
struct kv_apart_list;
struct kv_attend_list;
struct kv_attend_job;
struct kv_score_job;
struct kv_score_list;
struct kv_choose_list;
struct kv_choose_all;
struct kv_unite_list;
struct kv_share_list;
struct kv_blend_list;
struct kv_learn_list;
struct kv_predict_list;
struct kv_asked_list;
struct kv_weigh_list;
struct kv_victim_list;
struct kv_class;
struct kv_copy;
struct kv_cache;
struct kv_geometry;
struct kv_seq;
struct kv_page_part;
struct kv_lane;
struct kv_lane_moves;
struct kv_place;
enum kv_side { KV_SIDE_K, KV_SIDE_V };
/* The form in which a page's bytes are read or written: as they are, or as in files. In files keys
   lie entry by entry in every page. Both leave a place for positions, after the stored entries. */
enum kv_page_form { KV_PAGE_AS_IT_IS, KV_PAGE_SAVED };

/* A device as people see it in lists. */
struct pi_device_report {
    char text[128]; /* one line: what it is */
    int64_t total;  /* bytes of its memory; -1: not known, as the next */
    int64_t unused; /* that it could give now */
};

/* Bytes of a device, and host memory of alloc_host that is copied there or from there. */
struct pi_carry {
    struct pi_at at;
    uint8_t *host;
    size_t size;
};

struct pi_device {
    const char *name;       /* as users give it: "cpu", "cuda:0" */
    bool in_host;           /* its addresses are pointers of this process that the host may use */
    bool floats;            /* products of all types read their input's floats, not an int8 copy */
    _Atomic int64_t bytes;  /* of its memory in use. Of mapped memory a GPU counts what is touched,
                              the processor all */
    _Atomic int64_t pinned; /* bytes of the host that alloc_host has */

    void (*describe)(struct pi_device *d, struct pi_device_report *out);
    /* Whether everything that was waited for since the last call has its effect. NOMEM: memory
       ended meanwhile, and the device goes on. INTERNAL: it is lost for good. */
    pith_status (*check)(struct pi_device *d, pith_error *err);
    /* The bounds of its speed (pith_device_measure); NULL: as the processor is measured. */
    pith_status (*measure)(struct pi_device *d, struct pith_machine *out, pith_error *err);
    /* The best tokens of rows; NULL: the host looks at whole rows. */
    void (*best)(struct pi_stream *s, const struct pi_best_rows *b);
    /* Rows of another device's stream, after all that was asked of both, to where `s` has them: the
       host does not wait. NULL, or false: they have to go over the host, and nothing has
       happened. */
    bool (*fetch)(struct pi_stream *s, struct pi_at to, struct pi_stream *of, struct pi_at from,
                  size_t size);
    /* A whole pass at once: the same bits as by the operations one after the other. NULL, or false:
       not this one, and nothing has happened. */
    bool (*step)(struct pi_stream *s, const struct pi_step *p);

    /* ---- memory. Zeroed; NULL's address: there is none left. Mapped memory takes only its touched
       pages, and `drop` gives them back. ---- */
    struct pi_at (*alloc)(struct pi_device *d, enum pi_mem_tag tag, size_t size);
    void (*free)(struct pi_device *d, struct pi_at at);
    struct pi_at (*map)(struct pi_device *d, enum pi_mem_tag tag, size_t size);
    void (*unmap)(struct pi_device *d, enum pi_mem_tag tag, struct pi_at at, size_t size);
    /* The host's memory, pinned, as mapped memory of the device; unmap ends it. NULL: none can
       be. */
    struct pi_at (*map_host)(struct pi_device *d, size_t size);
    void (*drop)(struct pi_device *d, struct pi_at at, size_t size);
    /* Whether that many bytes more of mapped memory could be touched now. */
    bool (*spare)(struct pi_device *d, size_t size);
    /* Host memory as the device reads it: where it is, or room, which gets a copy. Likewise as the
       device may write to it: then a download from there brings it back. */
    struct pi_at (*lend)(struct pi_device *d, const void *host, size_t size, struct pi_at room);
    struct pi_at (*lend_out)(struct pi_device *d, void *host, struct pi_at room);
    void (*upload)(struct pi_stream *s, const void *host, size_t size, struct pi_at to);
    /* Where the host finds the bytes: in room, or where they are. */
    void *(*download)(struct pi_stream *s, struct pi_at from, size_t size, void *room);
    /* Copies beside passes, out to the host or in, which begin when all earlier calls are done.
       Calls of passes do not wait for them: those on streams, but for scores, choices and weights
       of a round. Other calls do, and so does all that comes after `settle`. Freeing host memory
       waits. NULL, all four: upload and download will do. alloc_host gives NULL where none is
       left. */
    void *(*alloc_host)(struct pi_device *d, size_t size);
    void (*free_host)(struct pi_device *d, void *p, size_t size);
    void (*carry)(struct pi_device *d, const struct pi_carry *list, int32_t n, bool out);
    void (*settle)(struct pi_device *d);
    /* n_slab matrices of the host's packing, one behind the other; the host's memory stays. Address
       none: no memory. */
    struct pi_at (*pack)(struct pi_device *d, const struct pi_matrix *w, int32_t n_slab);
    struct pi_at (*pack_vector)(struct pi_device *d, const float *x, size_t n);
    void (*unpack)(struct pi_device *d, struct pi_at at); /* forgets the packed form */

    /* ---- streams ---- */
    struct pi_stream *(*open)(struct pi_device *d, const struct pi_stream_shape *shape);
    void (*close)(struct pi_stream *s);
    void (*wait)(struct pi_stream *s);

    /* ---- a pass. work: the cost of a row, about, in multiplications ---- */
    void (*rows)(struct pi_stream *s, enum pi_rows_body body, const void *args, int64_t n_row,
                 int64_t work);
    void (*product)(struct pi_stream *s, const struct pi_product *p);
    void (*product_heads)(struct pi_stream *s, const struct pi_product_heads *p);
    void (*product_experts)(struct pi_stream *s, const struct pi_product_experts *p);
    /* Gives each choice of n_tok tokens its row. */
    void (*moe_sort)(struct pi_stream *s, const struct pi_moe_rule *rule,
                     const struct pi_moe_places *places, int32_t n_tok);
    /* The convolution over each item's tokens, which moves its past on; then the recurrence. */
    void (*delta_conv)(struct pi_stream *s, const struct pi_delta_rows *d, struct pi_at w,
                       const struct pi_delta_item *items, int32_t n);
    void (*delta_turn)(struct pi_stream *s, const struct pi_delta_rows *d,
                       const struct pi_delta_item *items, int32_t n);

    /* ---- the store. Tables, positions and marks are the host's; pages go by their numbers ---- */

    /* Bytes of scratch of the host that a call of attend_one or score_one takes, and query tokens
       of one call of attention at full speed. */
    size_t (*attend_scratch)(const struct kv_geometry *g, int32_t n_row);
    size_t (*score_scratch)(const struct kv_geometry *g, int32_t n_q);
    int32_t (*attend_tile)(int32_t n_group);

    /* Writes entries to where the host has made room for them in its tables (kv_append_place), and
       notes which are more than their types hold. s NULL: on this thread, at once. */
    void (*append)(struct pi_stream *s, const struct kv_append *jobs, int32_t n);
    /* Brings `clipped` of all caches up to date. NULL: calls without a stream leave it so. */
    void (*note_clipped)(struct pi_device *d);
    /* Every call of a layer's attention; the device asks for them as it needs them. A call's notes
       of its weights go to arrays of the host (kv/note.h), but marks of lanes that the device
       has. */
    void (*attend)(struct pi_stream *s, const struct kv_attend_list *list);
    /* One call whose queries and results are the host's; on any thread, with scratch of its own. */
    void (*attend_one)(const struct kv_attend_job *job, void *scratch);
    /* Scores of a round by keys or values alone, which stay on the device for its choices. NULL:
       policies score by what the host gets of keys and values. Then `score` picks no vectors
       (kv/score.h), and its scores are the host's. */
    void (*weigh)(struct pi_stream *s, const struct kv_weigh_list *list);
    /* Whether that, too, looks at attention in the lanes of a layer; else the host does. */
    bool (*sees)(const struct kv_seq *seq, int32_t layer);
    /* The entries that the next step overwrites, by scores of the device; slots stay there, too
       (kv/victim.h). NULL: the host chooses. */
    void (*victims)(struct pi_stream *s, const struct kv_victim_list *list);
    /* Remembers rows of a pass for policies (kv/learn.h). NULL: the host gets them and does. */
    void (*learn)(struct pi_stream *s, const struct kv_learn_list *list);
    /* Marks new entries with their predicted importance (kv/learn.h). NULL likewise. */
    void (*predict)(struct pi_stream *s, const struct kv_predict_list *list);
    /* Copies bytes that do not overlap. It has no stream. NULL where nothing is learned. */
    void (*clone)(struct pi_device *d, struct pi_at to, struct pi_at from, size_t size);
    /* Scores of the lanes of a round or of a layer's chunks, by vectors of the host, to arrays of
       the host. score_one does the same for one lane, on any thread. */
    void (*score)(struct pi_stream *s, const struct kv_score_list *list);
    void (*score_one)(const struct kv_score_job *job, void *scratch);
    /* The best of each lane's scores, and how many of the best of all are each lane's. */
    void (*choose)(struct pi_stream *s, const struct kv_choose_list *list);
    void (*choose_all)(struct pi_stream *s, const struct kv_choose_all *job);
    /* They work on choices that stay there (kv/chosen.h): two between `choose` and the next call of
       another kind, `blend` behind attention. NULL where `weigh` is. */
    void (*unite)(struct pi_stream *s, const struct kv_unite_list *list);
    void (*share)(struct pi_stream *s, const struct kv_share_list *list);
    void (*blend)(struct pi_stream *s, const struct kv_blend_list *list);
    /* Weights that queries would give to entries that are not in their lane (kv/asked.h), to the
       host. NULL likewise. */
    void (*asked)(struct pi_stream *s, const struct kv_asked_list *list);
    /* kv_lane_run_keys, kv_lane_run_values, kv_lane_value_sum. */
    void (*decode_run)(const struct kv_seq *seq, int32_t layer, int32_t head, int32_t i,
                       enum kv_side side, float *out);
    void (*value_sum)(const struct kv_seq *seq, int32_t layer, int32_t head, int32_t n, float *out);
    /* How far entries of lanes are apart (kv/apart.h). NULL: the host compares what it gets. */
    void (*apart)(const struct kv_apart_list *list);
    /* A key or value as floats, turned back, and as stored (kv_side_bytes), and either back. */
    void (*decode_entry)(const struct kv_place *p, enum kv_side side, float *out);
    void (*encode_entry)(const struct kv_place *p, enum kv_side side, const float *row);
    void (*get_entry)(const struct kv_place *p, enum kv_side side, uint8_t *out);
    void (*put_entry)(const struct kv_place *p, enum kv_side side, const uint8_t *bytes);
    /* Copies both sides of n entries of one page, at the slots of their lane, and their index. They
       go to consecutive slots of a lane of this or another cache of the device. */
    void (*fill)(const struct kv_copy *c, const int32_t *slots, int32_t n, int32_t to_slot);
    /* Makes the index of entries slot .. slot + n, and of a page whose entries are written. */
    void (*index)(const struct kv_cache *cache, const struct kv_class *kind, int32_t lane,
                  int32_t page, int32_t slot, int32_t n);
    void (*finish)(const struct kv_cache *cache, const struct kv_class *kind, int32_t page);
    /* The norms of values of entries (kv_cache_set_marks). */
    void (*norms)(const struct kv_cache *cache, const struct kv_class *kind, int32_t page,
                  int32_t slot, int32_t n, uint16_t *out);
    /* Entries as stored, with their index (kv_page_move). */
    void (*move)(const struct kv_cache *cache, const struct kv_class *kind, int32_t to,
                 const struct kv_page_part *part, int32_t n_part);
    /* The same for many pages of a lane, with their `finish`. Several threads may call it, each for
       lanes of its own. It may be done as late as before the next other call. NULL: `move` and
       `finish` do it page by page. */
    void (*move_lane)(const struct kv_cache *cache, const struct kv_lane_moves *m);
    /* Packs the marks and norms of slots [n], ascending, into the first ones of a lane whose marks
       it has (kv_lane.marks). As move_lane for threads and time. NULL: marks are the host's, and
       notes of attention go there. */
    void (*pack_marks)(const struct kv_seq *seq, const struct kv_lane *lane, const int32_t *slots,
                       int32_t n);
    void (*copy)(const struct kv_cache *cache, const struct kv_class *kind, int32_t to,
                 int32_t from);
    /* A whole page to the host and back. A page in the form of files gets no index. */
    void (*read_page)(const struct kv_cache *cache, const struct kv_class *kind, int32_t page,
                      enum kv_page_form form, uint8_t *out);
    void (*write_page)(const struct kv_cache *cache, const struct kv_class *kind, int32_t page,
                       enum kv_page_form form, const uint8_t *bytes);
    void (*clear_page)(const struct kv_cache *cache, const struct kv_class *kind, int32_t page);
};

/* download, to where `out` is. */
static inline void pi_download_to(struct pi_device *d, struct pi_stream *s, struct pi_at from,
                                  size_t size, void *out)
{
    const void *at = d->download(s, from, size, out);
    if (at != out)
        memcpy(out, at, size);
}

/* ---- the list ---- */

/* This machine's processor. */
extern struct pi_device pi_device_cpu;

/* Where no device is named: the processor. */
struct pi_device *pi_device_default(void);

/* ---- for tests ---- */

/* The host cannot see its memory, and it does everything late. It is a part of test programs
   (tests/CMakeLists.txt). */
extern struct pi_device pi_device_checked;
/* The default is this one; NULL: as before. Returns the one before. No engine is made meanwhile. */
struct pi_device *pi_device_register(struct pi_device *d);
struct pi_device *pi_device_of_tests(void); /* NULL: none */

#endif
