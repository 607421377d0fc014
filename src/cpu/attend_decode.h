/*
 * attend_decode.h - pages as f32, keys side by side, for many rows: written once for every vector
 * level. A part of attend_tile.h; codes are attend_codes.h's.
 */
#ifndef PI_ATTEND_DECODE_H
#define PI_ATTEND_DECODE_H

TILE void decode_half(const enum pi_attend_type type, const uint16_t *from, float *to, int32_t n)
{
    int32_t i = 0;
    for (; i + VEC <= n; i += VEC)
        vec_store(to + i, load_values(type, (const uint8_t *)(from + i)));
    if (i < n)
        vec_store_part(to + i, load_values_part(type, (const uint8_t *)(from + i), n - i), n - i);
}

/* Keys side by side as f32, out [n_dim][len]. */
TILE void decode_block(const enum pi_attend_type type, const struct keys *keys, int32_t len,
                       float *out)
{
    const int32_t size = element_size(type);
    const uint8_t *next = keys->next, *at = keys->at;
    for (int32_t d = 0; d < keys->n_dim; d += element_len(type)) {
        prefetch_lines(next, (size_t)(len * keys->asked), false);
        UNROLL
        for (int32_t i = 0; i < element_len(type); i++, out += len)
            for (int32_t s = 0; s < len; s += VEC)
                vec_store(out + s, load_keys(type, at + s * size, i,
                                             type == PI_ATTEND_Q8_0
                                                 ? vec_mul(scale_of(keys, d / SCALE_LEN, s),
                                                           vec_set1(0x1p-24f))
                                                 : vec_zero()));
        next += keys->next_pitch;
        at += keys->pitch;
    }
}

/* The values stay as they are, but that they are side by side and f32. */
TILE void decode_keys(const enum pi_attend_type type, const struct pi_attend_page *page, float *out)
{
    const int32_t len = page->page_len;
    struct key_block block;
    if (page->columns) {
        const struct keys keys = keys_stored(type, page);
        decode_block(type, &keys, len, out);
        return;
    }
    for (int32_t d0 = 0; d0 < page->dim_k; d0 += key_block_len(page, d0)) {
        const struct keys keys = keys_turn(type, page, len, d0, &block);
        decode_block(type, &keys, len, out + (size_t)d0 * (size_t)len);
    }
}

static void decode_k_f32(const struct pi_attend_page *page, float *out)
{
    decode_keys(PI_ATTEND_F32, page, out);
}

static void decode_k_f16(const struct pi_attend_page *page, float *out)
{
    decode_keys(PI_ATTEND_F16, page, out);
}

static void decode_k_bf16(const struct pi_attend_page *page, float *out)
{
    decode_keys(PI_ATTEND_BF16, page, out);
}

static void decode_k_q8_0(const struct pi_attend_page *page, float *out)
{
    decode_keys(PI_ATTEND_Q8_0, page, out);
}

/* Keys and scales of q8_0 side by side, as pages with columns have them. */
static void turn_k(const struct pi_attend_page *page, uint8_t *out)
{
    const int32_t len = page->page_len, dim = page->dim_k, n_scale = dim / SCALE_LEN;
    const uint8_t *k = page->k;
    uint16_t *scale = (uint16_t *)(void *)(out + (size_t)dim * (size_t)len);
    transpose_4(k, (size_t)dim, out, (size_t)len * 4, len, dim / 4, k + page->next, page->far);
    for (int32_t b = 0; b < n_scale; b++)
        for (int32_t s = 0; s < len; s++)
            scale[b * len + s] = page->k_scale[s * n_scale + b];
}

TILE void decode_halves(const enum pi_attend_type type, const struct pi_attend_page *page,
                        float *out)
{
    const uint16_t *v = page->v;
    if (page->v_pitch == page->dim_v)
        decode_half(type, v, out, page->dim_v * page->page_len);
    for (int32_t s = 0; page->v_pitch != page->dim_v && s < page->page_len; s++)
        decode_half(type, v + s * page->v_pitch, out + s * page->dim_v, page->dim_v);
}

static void decode_v_f16(const struct pi_attend_page *page, float *out)
{
    decode_halves(PI_ATTEND_F16, page, out);
}

static void decode_v_bf16(const struct pi_attend_page *page, float *out)
{
    decode_halves(PI_ATTEND_BF16, page, out);
}

static void decode_v_q8_0(const struct pi_attend_page *page, float *out)
{
    const int8_t *code = page->v;
    const uint16_t *scales = page->v_scale;
    for (int32_t s = 0; s < page->page_len; s++, out += page->dim_v) {
        for (int32_t b = 0; b < page->dim_v / 32; b++) {
            vec scale = vec_set1_f16(scales + b);
            for (int32_t i = b * 32; i < b * 32 + 32; i += VEC)
                vec_store(out + i, vec_mul(scale, vec_load_i8(code + i)));
        }
        code += page->v_pitch;
        scales += page->v_pitch / 32;
    }
}

#endif
