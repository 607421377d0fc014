/*
 * matmul_pack.c - packing of weights into groups of 16 rows, and the way back. It owns the table of
 * packed layouts and the meaning of each type's payload for one row; it must not know how products
 * are computed. Invariant: packing loses nothing, unpacking gives the values of dtype.c's decode.
 */
#include <math.h>
#include <stdlib.h>

#include "base/half.h"
#include "cpu/matmul_layout.h"
#include "file/sum.h"
#include "tensor/dtype_table.h"

/* In the order of pi_matmul_index. */
static const struct pi_matmul_layout layouts[PI_MATMUL_N_TYPE] = {
    {.type = PI_DTYPE_F32, .block_len = 1, .block_bytes = 4},
    {.type = PI_DTYPE_F16, .block_len = 1, .block_bytes = 2},
    {.type = PI_DTYPE_BF16, .block_len = 1, .block_bytes = 2},
    {.type = PI_DTYPE_Q8_0,
     .block_len = 32,
     .block_bytes = 34,
     .payload_offset = 2,
     .payload_bytes = 32,
     .half_offset = {0},
     .n_half = 1,
     .flip = 0x80808080u,
     .sub_len = 32,
     .zero = 128},
    {.type = PI_DTYPE_Q4_0,
     .block_len = 32,
     .block_bytes = 18,
     .payload_offset = 2,
     .payload_bytes = 16,
     .half_offset = {0},
     .n_half = 1,
     .sub_len = 32,
     .zero = 8},
    {.type = PI_DTYPE_Q4_1,
     .block_len = 32,
     .block_bytes = 20,
     .payload_offset = 4,
     .payload_bytes = 16,
     .half_offset = {0, 2},
     .n_half = 2,
     .sub_len = 32,
     .has_min = true},
    {.type = PI_DTYPE_Q5_0,
     .block_len = 32,
     .block_bytes = 22,
     .payload_offset = 2,
     .payload_bytes = 20,
     .half_offset = {0},
     .n_half = 1,
     .sub_len = 32,
     .zero = 16},
    {.type = PI_DTYPE_Q5_1,
     .block_len = 32,
     .block_bytes = 24,
     .payload_offset = 4,
     .payload_bytes = 20,
     .half_offset = {0, 2},
     .n_half = 2,
     .sub_len = 32,
     .has_min = true},
    {.type = PI_DTYPE_Q2_K,
     .block_len = 256,
     .block_bytes = 84,
     .payload_offset = 0,
     .payload_bytes = 80,
     .half_offset = {80, 82},
     .n_half = 2,
     .sub_len = 16,
     .has_min = true},
    {.type = PI_DTYPE_Q3_K,
     .block_len = 256,
     .block_bytes = 110,
     .payload_offset = 0,
     .payload_bytes = 108,
     .half_offset = {108},
     .n_half = 1,
     .sub_len = 16,
     .zero = 4},
    {.type = PI_DTYPE_Q4_K,
     .block_len = 256,
     .block_bytes = 144,
     .payload_offset = 4,
     .payload_bytes = 140,
     .half_offset = {0, 2},
     .n_half = 2,
     .sub_len = 32,
     .has_min = true},
    {.type = PI_DTYPE_Q5_K,
     .block_len = 256,
     .block_bytes = 176,
     .payload_offset = 4,
     .payload_bytes = 172,
     .half_offset = {0, 2},
     .n_half = 2,
     .sub_len = 32,
     .has_min = true},
    {.type = PI_DTYPE_Q6_K,
     .block_len = 256,
     .block_bytes = 210,
     .payload_offset = 0,
     .payload_bytes = 208,
     .half_offset = {208},
     .n_half = 1,
     .sub_len = 16,
     .zero = 32},
    {.type = PI_DTYPE_IQ4_NL,
     .block_len = 32,
     .block_bytes = PI_IQ4_NL_BYTES,
     .payload_offset = 2,
     .payload_bytes = 16,
     .half_offset = {0},
     .n_half = 1,
     .sub_len = 32,
     .zero = PI_IQ4_ZERO},
    {.type = PI_DTYPE_IQ4_XS,
     .block_len = 256,
     .block_bytes = PI_IQ4_XS_BYTES,
     .payload_offset = 4,
     .payload_bytes = 132,
     .half_offset = {0, 2},
     .n_half = 2,
     .sub_len = 32,
     .zero = PI_IQ4_ZERO},
    {.type = PI_DTYPE_MXFP4,
     .block_len = 32,
     .block_bytes = PI_MXFP4_BYTES,
     .payload_offset = 1,
     .payload_bytes = 16,
     .half_offset = {0},
     .n_half = 0,
     .sub_len = 32,
     .zero = PI_MXFP4_ZERO},
};

int32_t pi_matmul_index(enum pi_dtype type)
{
    for (int32_t i = 0; i < PI_MATMUL_N_TYPE; i++)
        if (layouts[i].type == type)
            return i;
    return -1;
}

const struct pi_matmul_layout *pi_matmul_layout(enum pi_dtype type)
{
    int32_t i = pi_matmul_index(type);
    return i < 0 ? NULL : &layouts[i];
}

bool pi_matmul_is_float(enum pi_dtype type)
{
    const struct pi_matmul_layout *layout = pi_matmul_layout(type);
    return layout != NULL && layout->payload_bytes == 0;
}

size_t pi_matmul_group_bytes(enum pi_dtype type, int32_t n_col)
{
    const struct pi_matmul_layout *layout = pi_matmul_layout(type);
    if (layout == NULL || n_col <= 0 || n_col % layout->block_len != 0)
        return 0;
    size_t n_block = (size_t)(n_col / layout->block_len);
    return pi_align(n_block * (size_t)layout->block_bytes * PI_GROUP, 64);
}

size_t pi_matmul_scratch_bytes(int32_t n_col_max)
{
    return PI_MATMUL_SCRATCH_FIXED + pi_align((size_t)n_col_max, 256) * PI_MATMUL_SCRATCH_PER_COL;
}

/* ---- packing ------------------------------------------------------------------------------ */

static uint32_t load_u32(const uint8_t *p)
{
    uint32_t v;
    memcpy(&v, p, sizeof(v));
    return v;
}

static uint16_t load_u16(const uint8_t *p)
{
    uint16_t v;
    memcpy(&v, p, sizeof(v));
    return v;
}

static void pack_float(size_t elem_bytes, int32_t n_col, const uint8_t *const *row, uint8_t *group)
{
    for (int32_t c = 0; c < n_col; c++) {
        for (int32_t r = 0; r < PI_GROUP; r++) {
            uint8_t *dst = group + ((size_t)c * PI_GROUP + (size_t)r) * elem_bytes;
            if (elem_bytes == 4)
                memcpy(dst, row[r] + (size_t)c * 4, 4);
            else
                memcpy(dst, row[r] + (size_t)c * 2, 2);
        }
    }
}

static void pack_quantised(const struct pi_matmul_layout *layout, int32_t n_col,
                           const uint8_t *const *row, uint8_t *group)
{
    int32_t n_block = n_col / layout->block_len;
    int32_t n_word = layout->payload_bytes / 4;
    uint8_t *words = group;
    uint8_t *halves = group + (size_t)n_block * (size_t)layout->payload_bytes * PI_GROUP;
    for (int32_t b = 0; b < n_block; b++) {
        size_t block = (size_t)b * (size_t)layout->block_bytes;
        size_t payload = block + (size_t)layout->payload_offset;
        for (int32_t i = 0; i < n_word; i++, words += 4 * PI_GROUP) {
            uint32_t word[PI_GROUP];
            for (int32_t r = 0; r < PI_GROUP; r++)
                word[r] = load_u32(row[r] + payload + 4 * (size_t)i) ^ layout->flip;
            memcpy(words, word, sizeof(word));
        }
        for (int32_t i = 0; i < layout->n_half; i++, halves += 2 * PI_GROUP) {
            uint16_t half[PI_GROUP];
            for (int32_t r = 0; r < PI_GROUP; r++)
                half[r] = load_u16(row[r] + block + (size_t)layout->half_offset[i]);
            memcpy(halves, half, sizeof(half));
        }
        for (int32_t r = 0; r < PI_GROUP && layout->n_half == 0; r++)
            *halves++ = row[r][block + (size_t)layout->half_offset[0]];
    }
}

/* Sets the words of a row's payload to zero. */
static void clear_words(const struct pi_matmul_layout *layout, int32_t n_block, int32_t r,
                        uint8_t *group)
{
    size_t n = (size_t)n_block * (size_t)(layout->payload_bytes / 4);
    for (size_t i = 0; i < n; i++)
        memset(group + (i * PI_GROUP + (size_t)r) * 4, 0, 4);
}

/* Sets the values of a missing row to zero: its scales and minimums, and all of a float row. Where
   a scale cannot be zero, the codes are. */
static void clear_row(const struct pi_matmul_layout *layout, int32_t n_col, int32_t r,
                      uint8_t *group)
{
    int32_t n_block = n_col / layout->block_len;
    bool is_float = layout->payload_bytes == 0;
    size_t size = is_float ? (size_t)layout->block_bytes : 2;
    size_t n = is_float ? (size_t)n_col : (size_t)n_block * (size_t)layout->n_half;
    uint8_t *base = group + (size_t)n_block * (size_t)layout->payload_bytes * PI_GROUP;
    if (!is_float && layout->n_half == 0)
        clear_words(layout, n_block, r, group);
    for (size_t i = 0; i < n; i++)
        memset(base + (i * PI_GROUP + (size_t)r) * size, 0, size);
}

void pi_matmul_pack_group(enum pi_dtype type, int32_t n_col, const void *rows, int32_t n_row_here,
                          void *group)
{
    const struct pi_matmul_layout *layout = pi_matmul_layout(type);
    size_t row_bytes = (size_t)(n_col / layout->block_len) * (size_t)layout->block_bytes;
    size_t group_bytes = pi_matmul_group_bytes(type, n_col);
    const uint8_t *row[PI_GROUP];
    /* Missing rows repeat the last one and are cleared afterwards. */
    for (int32_t r = 0; r < PI_GROUP; r++)
        row[r] = (const uint8_t *)rows + (size_t)pi_min(r, n_row_here - 1) * row_bytes;
    memset((uint8_t *)group + group_bytes - 64, 0, 64);
    if (layout->payload_bytes == 0)
        pack_float((size_t)layout->block_bytes, n_col, row, group);
    else
        pack_quantised(layout, n_col, row, group);
    for (int32_t r = n_row_here; r < PI_GROUP; r++)
        clear_row(layout, n_col, r, group);
}

#define LAYOUT_VERSION 1 /* another one where packing changes and the table of layouts does not */

uint64_t pi_matmul_layout_sum(void)
{
    struct pi_sum sum;
    const int32_t whole[] = {LAYOUT_VERSION, PI_GROUP, PI_MATMUL_N_TYPE};
    pi_sum_start(&sum);
    pi_sum_add(&sum, whole, sizeof(whole));
    for (int32_t i = 0; i < PI_MATMUL_N_TYPE; i++) {
        const struct pi_matmul_layout *l = &layouts[i];
        const int32_t one[] = {(int32_t)l->type,  l->block_len,     l->block_bytes,
                               l->payload_offset, l->payload_bytes, l->half_offset[0],
                               l->half_offset[1], l->n_half,        (int32_t)l->flip,
                               l->sub_len,        l->zero};
        pi_sum_add(&sum, one, sizeof(one));
    }
    return pi_sum_value(&sum);
}

/* ---- one row's block ---------------------------------------------------------------------- */

/* The payload of a block and the formulas follow ggml's reference formats; see dtype_k.c. */

static void code_q8_0(const uint8_t *payload, uint8_t *code)
{
    memcpy(code, payload, 32);
}

static void code_q4(const uint8_t *nibbles, uint8_t *code)
{
    for (int32_t j = 0; j < 16; j++) {
        code[j] = nibbles[j] & 15;
        code[j + 16] = nibbles[j] >> 4;
    }
}

static void code_q5(const uint8_t *payload, uint8_t *code)
{
    uint32_t high = load_u32(payload);
    code_q4(payload + 4, code);
    for (int32_t j = 0; j < 32; j++)
        code[j] |= (uint8_t)(((high >> j) & 1u) << 4);
}

/* Nibbles that stand for numbers of a table, as codes above its zero. */
static void code_table(const uint8_t *nibbles, const int8_t *table, int32_t zero, uint8_t *code)
{
    code_q4(nibbles, code);
    for (int32_t i = 0; i < 32; i++)
        code[i] = (uint8_t)(table[code[i]] + zero);
}

/* Low 4 bits of 8 scales [4], nibbles [128]; high has the scales' upper 2 bits. */
static void block_iq4_xs(const uint8_t *payload, float d, uint16_t high, struct pi_row_block *out)
{
    for (int32_t i = 0; i < 8; i++) {
        int32_t low = payload[i / 2] >> (i % 2 * 4) & 15;
        out->scale[i] = d * (float)((low | (high >> (2 * i) & 3) << 4) - 32);
        code_table(payload + 4 + 16 * i, pi_iq4_table, PI_IQ4_ZERO, out->code + 32 * i);
    }
}

/* scales[16] (scale in the low, minimum in the high nibble), codes of 2 bits [64]. */
static void block_q2_k(const uint8_t *payload, float d, float dmin, struct pi_row_block *out)
{
    for (int32_t c = 0; c < 256; c++)
        out->code[c] = (payload[16 + c / 128 * 32 + c % 32] >> (c % 128 / 32 * 2)) & 3;
    for (int32_t i = 0; i < 16; i++) {
        out->scale[i] = d * (float)(payload[i] & 15);
        out->min[i] = -(dmin * (float)(payload[i] >> 4));
    }
}

/* high bits [32], codes of 2 bits [64], 16 scales of 6 bits with zero point 32 in 12 bytes. */
static void block_q3_k(const uint8_t *payload, float d, struct pi_row_block *out)
{
    const uint8_t *scales = payload + 96;
    for (int32_t c = 0; c < 256; c++) {
        int32_t low = (payload[32 + c / 128 * 32 + c % 32] >> (c % 128 / 32 * 2)) & 3;
        int32_t high = (payload[c % 32] >> (c / 32)) & 1;
        out->code[c] = (uint8_t)(low + 4 * high);
    }
    for (int32_t i = 0; i < 16; i++) {
        int32_t low = i < 8 ? scales[i] & 15 : scales[i - 8] >> 4;
        int32_t high = (scales[8 + i % 4] >> (i / 4 * 2)) & 3;
        out->scale[i] = d * (float)(low + 16 * high - 32);
    }
}

/* 8 scales and 8 minimums of 6 bits in 12 bytes, of Q4_K and Q5_K. */
static void scales_q45_k(const uint8_t *scales, float d, float dmin, struct pi_row_block *out)
{
    for (int32_t i = 0; i < 8; i++) {
        int32_t scale = scales[i] & 63;
        int32_t min = scales[i + 4] & 63;
        if (i >= 4) {
            scale = (scales[i + 4] & 15) + (scales[i - 4] >> 6) * 16;
            min = (scales[i + 4] >> 4) + (scales[i] >> 6) * 16;
        }
        out->scale[i] = d * (float)scale;
        out->min[i] = -(dmin * (float)min);
    }
}

/* Nibbles of 256 codes: each 32 bytes hold 32 codes low, the next 32 high. */
static void code_q4_k(const uint8_t *nibbles, uint8_t *code)
{
    for (int32_t c = 0; c < 256; c++)
        code[c] = (nibbles[c / 64 * 32 + c % 32] >> (c % 64 / 32 * 4)) & 15;
}

static void block_q5_k(const uint8_t *payload, float d, float dmin, struct pi_row_block *out)
{
    scales_q45_k(payload, d, dmin, out);
    code_q4_k(payload + 44, out->code);
    for (int32_t c = 0; c < 256; c++)
        out->code[c] |= (uint8_t)(((payload[12 + c % 32] >> (c / 32)) & 1) << 4);
}

/* nibbles [128], high bits [64], int8 scales [16]. */
static void block_q6_k(const uint8_t *payload, float d, struct pi_row_block *out)
{
    for (int32_t c = 0; c < 256; c++) {
        int32_t half = c / 128, at = c % 128;
        int32_t low = (payload[half * 64 + at % 64] >> (at / 64 * 4)) & 15;
        int32_t high = (payload[128 + half * 32 + at % 32] >> (at / 32 * 2)) & 3;
        out->code[c] = (uint8_t)(low + 16 * high);
    }
    for (int32_t i = 0; i < 16; i++)
        out->scale[i] = d * (float)(int8_t)payload[192 + i];
}

void pi_matmul_row_block(const struct pi_matmul_layout *layout, int32_t n_col, const uint8_t *group,
                         int32_t row, int32_t block, struct pi_row_block *out)
{
    uint8_t payload[PI_PAYLOAD_MAX];
    const uint8_t *words = group + (size_t)block * (size_t)layout->payload_bytes * PI_GROUP;
    for (int32_t i = 0; i < layout->payload_bytes; i += 4)
        memcpy(payload + i, words + (size_t)i * PI_GROUP + 4 * (size_t)row, 4);
    const uint16_t *halves = pi_matmul_halves(layout, n_col, group);
    if (layout->n_half == 0) {
        const uint8_t *exponents = (const uint8_t *)halves;
        out->scale[0] = pi_mxfp4_scale(exponents[block * PI_GROUP + row]);
        code_table(payload, pi_mxfp4_table, PI_MXFP4_ZERO, out->code);
        return;
    }
    halves += (size_t)block * (size_t)layout->n_half * PI_GROUP + (size_t)row;
    float d = pi_f32_from_f16(halves[0]);
    float m = layout->n_half == 2 ? pi_f32_from_f16(halves[PI_GROUP]) : 0.0f;
    out->scale[0] = d;
    out->min[0] = m;
    switch (layout->type) {
    case PI_DTYPE_Q8_0:
        code_q8_0(payload, out->code);
        break;
    case PI_DTYPE_Q4_0:
    case PI_DTYPE_Q4_1:
        code_q4(payload, out->code);
        break;
    case PI_DTYPE_Q5_0:
    case PI_DTYPE_Q5_1:
        code_q5(payload, out->code);
        break;
    case PI_DTYPE_Q2_K:
        block_q2_k(payload, d, m, out);
        break;
    case PI_DTYPE_Q3_K:
        block_q3_k(payload, d, out);
        break;
    case PI_DTYPE_Q4_K:
        scales_q45_k(payload, d, m, out);
        code_q4_k(payload + 12, out->code);
        break;
    case PI_DTYPE_Q5_K:
        block_q5_k(payload, d, m, out);
        break;
    case PI_DTYPE_Q6_K:
        block_q6_k(payload, d, out);
        break;
    case PI_DTYPE_IQ4_NL:
        code_table(payload, pi_iq4_table, PI_IQ4_ZERO, out->code);
        break;
    case PI_DTYPE_IQ4_XS:
        block_iq4_xs(payload, d, halves[PI_GROUP], out);
        break;
    default:
        assert(false);
    }
}

/* ---- rows back ---------------------------------------------------------------------------- */

static void unpack_one(const struct pi_matrix *w, const uint8_t *group, int32_t row, int32_t c,
                       float *out)
{
    size_t at = (size_t)c * PI_GROUP + (size_t)row;
    if (w->type == PI_DTYPE_F32)
        memcpy(out, group + at * 4, 4);
    else if (w->type == PI_DTYPE_F16)
        *out = pi_f32_from_f16(load_u16(group + at * 2));
    else
        *out = pi_f32_from_bf16(load_u16(group + at * 2));
}

void pi_matmul_unpack_row(const struct pi_matrix *w, int32_t row, float *out)
{
    const struct pi_matmul_layout *layout = pi_matmul_layout(w->type);
    const uint8_t *group = w->data + (size_t)(row / PI_GROUP) * w->group_bytes;
    if (layout->payload_bytes == 0) {
        for (int32_t c = 0; c < w->n_col; c++)
            unpack_one(w, group, row % PI_GROUP, c, out + c);
        return;
    }
    struct pi_row_block block;
    for (int32_t b = 0; b < w->n_col / layout->block_len; b++, out += layout->block_len) {
        pi_matmul_row_block(layout, w->n_col, group, row % PI_GROUP, b, &block);
        for (int32_t i = 0; i < layout->block_len; i++) {
            int32_t sub = i / layout->sub_len;
            float value = block.scale[sub] * (float)(block.code[i] - layout->zero);
            out[i] = layout->has_min ? value + block.min[sub] : value;
        }
    }
}

/* The largest magnitude of weights that share a scale. Rounding keeps order, so the extreme codes
   are the extreme weights. */
static float most_of_sub(const struct pi_matmul_layout *layout, const struct pi_row_block *block,
                         int32_t sub)
{
    const uint8_t *code = block->code + (size_t)(sub * layout->sub_len);
    uint8_t least = 255, most = 0;
    for (int32_t i = 0; i < layout->sub_len; i++) {
        least = code[i] < least ? code[i] : least;
        most = code[i] > most ? code[i] : most;
    }
    float low = block->scale[sub] * (float)(least - layout->zero);
    float high = block->scale[sub] * (float)(most - layout->zero);
    float min = layout->has_min ? block->min[sub] : 0.0f;
    return fmaxf(fabsf(low + min), fabsf(high + min));
}

float pi_matmul_row_most(const struct pi_matrix *w, int32_t row)
{
    const struct pi_matmul_layout *layout = pi_matmul_layout(w->type);
    const uint8_t *group = w->data + (size_t)(row / PI_GROUP) * w->group_bytes;
    struct pi_row_block block;
    float most = 0.0f, one;
    for (int32_t c = 0; layout->payload_bytes == 0 && c < w->n_col; c++) {
        unpack_one(w, group, row % PI_GROUP, c, &one);
        most = fmaxf(most, fabsf(one));
    }
    for (int32_t b = 0; layout->payload_bytes > 0 && b < w->n_col / layout->block_len; b++) {
        pi_matmul_row_block(layout, w->n_col, group, row % PI_GROUP, b, &block);
        for (int32_t sub = 0; sub < layout->block_len / layout->sub_len; sub++)
            most = fmaxf(most, most_of_sub(layout, &block, sub));
    }
    return most;
}

void pi_matmul_file_block(const struct pi_matrix *w, int32_t row, int32_t block, void *out)
{
    const struct pi_matmul_layout *layout = pi_matmul_layout(w->type);
    const uint8_t *group = w->data + (size_t)(row / PI_GROUP) * w->group_bytes;
    size_t r = (size_t)(row % PI_GROUP), n_half = pi_matmul_scale_bytes(layout->n_half);
    size_t size = layout->n_half > 0 ? 2 : 1;
    uint8_t *to = out;
    if (layout->payload_bytes == 0) {
        size_t bytes = (size_t)layout->block_bytes;
        memcpy(to, group + ((size_t)block * PI_GROUP + r) * bytes, bytes);
        return;
    }
    const uint8_t *words = group + (size_t)block * (size_t)layout->payload_bytes * PI_GROUP;
    for (int32_t i = 0; i < layout->payload_bytes; i += 4) {
        uint32_t word = load_u32(words + (size_t)i * PI_GROUP + 4 * r) ^ layout->flip;
        memcpy(to + layout->payload_offset + i, &word, sizeof(word));
    }
    const uint8_t *halves = (const uint8_t *)pi_matmul_halves(layout, w->n_col, group);
    halves += (size_t)block * n_half * PI_GROUP;
    for (size_t i = 0; i < n_half / size; i++)
        memcpy(to + layout->half_offset[i], halves + (i * PI_GROUP + r) * size, size);
}
