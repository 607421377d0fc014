/*
 * attend_keys.h - loads keys, transposed, into registers. It transposes pages that store keys entry
 * by entry, some dimensions at a time, and reads columns as they are stored. Written once for every
 * vector level; a part of attend_tile.h, whose operations it uses.
 */
#ifndef PI_ATTEND_KEYS_H
#define PI_ATTEND_KEYS_H

static void transpose_2(const uint8_t *in, size_t in_row, uint8_t *out, size_t out_row,
                        int32_t n_row, int32_t n_dim, const uint8_t *next, bool far)
{
    transpose(2, in, in_row, out, out_row, n_row, n_dim, next, far);
}

static void transpose_4(const uint8_t *in, size_t in_row, uint8_t *out, size_t out_row,
                        int32_t n_row, int32_t n_dim, const uint8_t *next, bool far)
{
    transpose(4, in, in_row, out, out_row, n_row, n_dim, next, far);
}

enum {
    SCALE_LEN = 32, /* dimensions that share a scale of q8_0 */
    KEY_WHOLE = 95, /* dimensions of keys that are put side by side all at once */
    KEY_BLOCK = 32, /* of longer keys: more would evict prefetched lines from the cache */
};

/* The last dimensions, where they are no multiple, go with the ones before, so that they fill whole
   units of a transposition. */
TILE int32_t key_block_len(const struct pi_attend_page *page, int32_t d0)
{
    int32_t left = page->dim_k - d0;
    return page->dim_k <= KEY_WHOLE || (left < 2 * KEY_BLOCK && left % KEY_BLOCK != 0) ? left
                                                                                       : KEY_BLOCK;
}

/* Of q8_0, for the slots of a page and two blocks of dimensions, as f32. */
struct scales {
    float of[2][PI_ATTEND_SLOTS];
};

/* Scale b of slot s, s < n rounded up to 16, b < n_block, is from[s * step + b]. */
ONCE void scales_load(const uint16_t *from, int32_t step, int32_t n, int32_t n_block,
                      struct scales *to)
{
    for (int32_t b = 0; b < n_block; b++)
        for (int32_t s = 0; s < (n + 15) / 16 * 16; s += VEC)
            vec_store(to->of[b] + s, vec_load_f16_step(from + s * step + b, step));
}

/* Transposition moves elements: a value, or for q8_0 a word of four codes, which kernels split as
   they read it. So no element is smaller than two bytes. */
TILE int32_t element_len(enum pi_attend_type type)
{
    return type == PI_ATTEND_Q8_0 ? 4 : 1;
}

TILE int32_t element_size(enum pi_attend_type type)
{
    return is_half(type) ? 2 : 4;
}

/* Dimensions of keys side by side, and which of all they are. */
struct keys {
    const uint8_t *at; /* [n_dim / element_len] rows of elements, pitch bytes apart */
    size_t pitch;
    const struct scales *scales; /* of the slots and up to two blocks, q8_0 only */
    const uint16_t *scale_at;    /* or the stored scales of columns, [dim / 32][scale_pitch]; NULL:
                                    not columns */
    int32_t scale_pitch;
    int32_t d0;
    int32_t n_dim;
    const uint8_t *next; /* of a page that is read later: the part that the transposition did not
                            prefetch; NULL: none */
    int32_t asked;       /* bytes to ask for there, for each element */
    size_t next_pitch;   /* from one row of elements to the next */
};

/* Scales of a block of dimensions and VEC slots, q8_0 only. */
TILE vec scale_of(const struct keys *keys, int32_t block, int32_t s)
{
    if (keys->scale_at == NULL)
        return vec_load(keys->scales->of[block % 2] + s);
    return vec_load_f16(keys->scale_at + block * keys->scale_pitch + s);
}

/* Dimension i of VEC elements. Codes of q8_0 are loaded as multiples of 2^24, so their scale is
   2^-24 of the stored one. The product of scale and code is therefore exact. */
TILE vec load_keys(enum pi_attend_type type, const uint8_t *at, int32_t i, vec scale)
{
    return type == PI_ATTEND_Q8_0 ? vec_mul(scale, vec_load_code(at, i)) : load_values(type, at);
}

/* Room for the dimensions of a page's keys that are side by side at a time. */
struct key_block {
    _Alignas(64) uint8_t values[KEY_WHOLE * PI_ATTEND_SLOTS * sizeof(float)];
    struct scales scales;
};

/* Puts dimensions d0.. of the first n slots (a multiple of 16) side by side. */
TILE struct keys keys_turn(const enum pi_attend_type type, const struct pi_attend_page *page,
                           int32_t n, int32_t d0, struct key_block *block)
{
    const int32_t size = element_size(type), n_dim = key_block_len(page, d0);
    const int32_t n_element = n_dim / element_len(type);
    const size_t pitch = (size_t)(PI_ATTEND_SLOTS * size);
    const size_t row = (size_t)page->dim_k * type_size(type);
    const uint8_t *k = (const uint8_t *)page->k + (size_t)d0 * type_size(type);
    const uint8_t *next =
        (const uint8_t *)page->k + page->next + (size_t)(d0 * n) * type_size(type);
    if (size == 4)
        transpose_4(k, row, block->values, pitch, n, n_element, next, page->far);
    else
        transpose_2(k, row, block->values, pitch, n, n_element, next, page->far);
    if (type == PI_ATTEND_Q8_0)
        scales_load(page->k_scale + d0 / SCALE_LEN, page->dim_k / SCALE_LEN, n, n_dim / SCALE_LEN,
                    &block->scales);
    return (struct keys){.at = block->values,
                         .pitch = pitch,
                         .scales = &block->scales,
                         .d0 = d0,
                         .n_dim = n_dim,
                         .next = next + n_element * n * ASKED(size),
                         .asked = size - ASKED(size),
                         .next_pitch = (size_t)(n * (size - ASKED(size)))};
}

/* All keys of a page that lie side by side already. */
TILE struct keys keys_stored(const enum pi_attend_type type, const struct pi_attend_page *page)
{
    const int32_t size = element_size(type);
    const size_t pitch = (size_t)(page->page_len * size);
    return (struct keys){.at = page->k,
                         .pitch = pitch,
                         .scale_at = page->k_scale,
                         .scale_pitch = page->page_len,
                         .n_dim = page->dim_k,
                         .next = (const uint8_t *)page->k + page->next,
                         .asked = size,
                         .next_pitch = pitch};
}

#endif
