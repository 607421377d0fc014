/*
 * vec_delta.h - a part of vec_body.h: the kernels of a gated delta net. Columns of the state are
 * outputs, so that the lanes of a register are columns and every sum runs over rows in order. How
 * many columns are done at a time is the level's affair and changes no bit.
 */

#define VEC_STATE 16 /* columns of a block of the state */

/* Blocks that are done together: their sums are to fit into registers and hide the latency of
   adding. */
#if defined(__AVX512F__)
#define VEC_STATE_BLOCKS 4
#else
#define VEC_STATE_BLOCKS 2
#endif

/* ---- the convolution ---- */

/* Row t of an input that goes on from `past`. */
static const float *vec_conv_row(const struct pi_vec_conv *p, int32_t t)
{
    if (t < 0)
        return p->past + (size_t)(p->n_tap - 1 + t) * p->past_stride;
    return p->x + (size_t)t * p->x_stride;
}

/* n channels from c on, n at most a register of the widest level. */
TILE void vec_conv_tile(const struct pi_vec_conv *p, int32_t c, const int32_t n)
{
    float w[PI_CONV_TAPS][VEC_LANES], sum[VEC_LANES];
    for (int32_t j = 0; j < p->n_tap; j++)
        VEC_EACH(i) w[j][i] = p->w[(size_t)(c + i) * (size_t)p->n_tap + (size_t)j];
    for (int32_t t = 0; t < p->n_tok; t++) {
        const float *first = vec_conv_row(p, t - p->n_tap + 1) + c;
        VEC_EACH(i) sum[i] = w[0][i] * first[i];
        for (int32_t j = 1; j < p->n_tap; j++) {
            const float *x = vec_conv_row(p, t - p->n_tap + 1 + j) + c;
            VEC_EACH(i) sum[i] = fmaf(w[j][i], x[i], sum[i]);
        }
        float *out = p->out + (size_t)t * p->out_stride + c;
        VEC_EACH(i) out[i] = vec_silu(sum[i]);
    }
}

static void vec_conv(const struct pi_vec_conv *p)
{
    int32_t c = 0;
    for (; c + VEC_LANES <= p->n; c += VEC_LANES)
        vec_conv_tile(p, c, VEC_LANES);
    for (; c < p->n; c++)
        vec_conv_tile(p, c, 1);
}

/* ---- the state ---- */

/* A token's addition to a block's columns, and its output, from their sums over rows; n of the
   columns are used. */
TILE void vec_delta_turn(const struct pi_vec_delta *p, int32_t t, int32_t column, const float *by_k,
                         const float *by_q, float *d)
{
    size_t at = (size_t)t * p->gate_stride;
    float decay = p->decay[at], beta = p->beta[at], kq = p->kq[(size_t)t * p->kq_stride];
    int32_t n = p->n - column < VEC_STATE ? p->n - column : VEC_STATE;
    const float *v = p->v + (size_t)t * p->v_stride + column;
    float *out = p->out + (size_t)t * p->out_stride + column, value[VEC_STATE] = {0};
    for (int32_t l = 0; l < n; l++)
        value[l] = v[l];
    for (int32_t l = 0; l < VEC_STATE; l++) {
        d[l] = beta * (value[l] - decay * by_k[l]);
        value[l] = p->scale * fmaf(kq, d[l], decay * by_q[l]);
    }
    for (int32_t l = 0; l < n; l++)
        out[l] = value[l];
}

#define VEC_LANE for (int32_t l = 0; l < VEC_STATE; l++)

/* A row of a block: with `turn` it adds the token's change, then it accumulates the next token's
   sums. */
TILE void vec_delta_row(float *x, const bool turn, float decay, float by, const float *d, float k,
                        float q, float *by_k, float *by_q)
{
    VEC_LANE
    {
        x[l] = turn ? fmaf(by, d[l], decay * x[l]) : x[l];
        by_k[l] = fmaf(k, x[l], by_k[l]);
        by_q[l] = fmaf(q, x[l], by_q[l]);
    }
}

/* Sums of a token over the rows of n_block blocks, [4][VEC_STATE] each. */
struct vec_delta_sums {
    float k[4][VEC_STATE], q[4][VEC_STATE];
};

/* All rows: token t turns them where t >= 0, and `next` reads them. */
TILE void vec_delta_rows(const struct pi_vec_delta *p, float *state, const int32_t n_block,
                         const bool turn, int32_t t, int32_t next, float d[4][VEC_STATE],
                         struct vec_delta_sums *out)
{
    size_t len = (size_t)p->dim * VEC_STATE;
    float *s0 = state, *s1 = s0 + len, *s2 = s1 + len, *s3 = s2 + len;
    const float *add = p->k + (size_t)t * p->qk_stride;
    const float *k = p->k + (size_t)next * p->qk_stride, *q = p->q + (size_t)next * p->qk_stride;
    float decay = p->decay[(size_t)t * p->gate_stride];
    float k0[VEC_STATE], k1[VEC_STATE], k2[VEC_STATE], k3[VEC_STATE];
    float q0[VEC_STATE], q1[VEC_STATE], q2[VEC_STATE], q3[VEC_STATE];
    VEC_LANE k0[l] = k1[l] = k2[l] = k3[l] = q0[l] = q1[l] = q2[l] = q3[l] = 0.0f;
    for (size_t i = 0; i < (size_t)p->dim; i++) {
        size_t at = i * VEC_STATE;
        vec_delta_row(s0 + at, turn, decay, add[i], d[0], k[i], q[i], k0, q0);
        if (n_block > 1)
            vec_delta_row(s1 + at, turn, decay, add[i], d[1], k[i], q[i], k1, q1);
        if (n_block > 2)
            vec_delta_row(s2 + at, turn, decay, add[i], d[2], k[i], q[i], k2, q2);
        if (n_block > 2)
            vec_delta_row(s3 + at, turn, decay, add[i], d[3], k[i], q[i], k3, q3);
    }
    VEC_LANE
    {
        out->k[0][l] = k0[l], out->k[1][l] = k1[l], out->k[2][l] = k2[l], out->k[3][l] = k3[l];
        out->q[0][l] = q0[l], out->q[1][l] = q1[l], out->q[2][l] = q2[l], out->q[3][l] = q3[l];
    }
}

/* All tokens over blocks `block` .. block + n_block of the state, n_block 1, 2 or 4. The loop
   computes the sums once more after the last token, unused: that costs less than another loop. */
TILE void vec_delta_tile(const struct pi_vec_delta *p, int32_t block, const int32_t n_block)
{
    float *state = p->state + (size_t)(block * VEC_STATE) * (size_t)p->dim;
    float d[4][VEC_STATE] = {{0}};
    struct vec_delta_sums sums;
    if (p->n_tok > 0)
        vec_delta_rows(p, state, n_block, false, 0, 0, d, &sums);
    for (int32_t t = 0; t < p->n_tok; t++) {
        for (int32_t b = 0; b < n_block; b++)
            vec_delta_turn(p, t, (block + b) * VEC_STATE, sums.k[b], sums.q[b], d[b]);
        vec_delta_rows(p, state, n_block, true, t, t + 1 < p->n_tok ? t + 1 : t, d, &sums);
    }
}

static void vec_delta(const struct pi_vec_delta *p)
{
    int32_t n_block = (p->n + VEC_STATE - 1) / VEC_STATE, block = 0;
    for (; block + VEC_STATE_BLOCKS <= n_block; block += VEC_STATE_BLOCKS)
        vec_delta_tile(p, block, VEC_STATE_BLOCKS);
    for (; block < n_block; block++)
        vec_delta_tile(p, block, 1);
}

/* ---- beside them ---- */

static void vec_unit(float *x, int32_t n, float eps)
{
    float r = (float)(1.0 / sqrt(vec_sum_squares(x, n) + (double)eps));
    for (int32_t i = 0; i < n; i++)
        x[i] *= r;
}

static float vec_product(const float *x, const float *y, int32_t n)
{
    float s[VEC_LANES] = {0};
    int32_t i = 0;
    for (; i + VEC_LANES <= n; i += VEC_LANES)
        for (int32_t j = 0; j < VEC_LANES; j++)
            s[j] = fmaf(x[i + j], y[i + j], s[j]);
    for (int32_t j = 0; i + j < n; j++)
        s[j] = fmaf(x[i + j], y[i + j], s[j]);
    for (int32_t half = VEC_LANES / 2; half > 0; half /= 2)
        for (int32_t j = 0; j < half; j++)
            s[j] += s[j + half];
    return s[0];
}

static void vec_sigmoid_mul(float *restrict x, const float *restrict gate, int32_t n)
{
    for (int32_t i = 0; i < n; i++)
        x[i] = x[i] / (1.0f + pi_expf(vec_exp_range(-gate[i])));
}
