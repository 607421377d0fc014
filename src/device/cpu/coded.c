/*
 * coded.c - the storage types of a few bits: a group of dimensions becomes codes of a table and one
 * f16 scale. It owns the tables and the packing; where the parts lie in a page is page.c's. The
 * loops have no branches, so that compilers make them wide. Invariant: values are finite after
 * encoding any numbers, and after decoding any bytes with a finite scale.
 *
 * The turbo types come from TurboQuant ("TurboQuant: Online Vector Quantization with Near-optimal
 * Distortion Rate", arXiv 2504.19874, section 3.1). They differ in a signed Walsh-Hadamard
 * transform for a dense rotation, groups for whole rows, and a search for codes and scale
 * (kv_coded_encode). q4_0 is ggml's.
 */
#include <math.h>

#include "base/half.h"
#include "cpu/kernels.h"
#include "device/cpu/pages.h"
#include "device/cpu/wht.h"

#define F16_MAX 65504.0f
#define Q4_BLOCK 32
#define LEAST_NORM 1e-10f /* of a group that is not stored as zeros */

/* ---- tables ---- */

/*
 * After the rotation a coordinate of a unit vector of g dimensions is close to N(0, 1 / g). The
 * centroids are the Lloyd-Max quantiser's of N(0, 1) (S. P. Lloyd, "Least squares quantization in
 * PCM", 1982; fixed points of centroid = mean of its cell), divided by sqrt(g). Their distortions
 * are 0.117482, 0.034548 and 0.009501.
 */
#define OVER(x, root) ((float)((x) / (root)))
#define TABLE_2(r)                                                                                 \
    OVER(-1.5104176084992214, r), OVER(-0.45278003463655314, r), OVER(0.45278003463655314, r),     \
        OVER(1.5104176084992214, r)
#define TABLE_3(r)                                                                                 \
    OVER(-2.151945704537596, r), OVER(-1.3439092785056177, r), OVER(-0.7560052812063308, r),       \
        OVER(-0.24509417894438795, r), OVER(0.24509417894438795, r), OVER(0.7560052812063308, r),  \
        OVER(1.3439092785056177, r), OVER(2.151945704537596, r)
#define TABLE_4(r)                                                                                 \
    OVER(-2.7325895709975616, r), OVER(-2.0690172265340876, r), OVER(-1.6180463860246426, r),      \
        OVER(-1.2562311973497802, r), OVER(-0.9423404564892143, r), OVER(-0.6567591185342001, r),  \
        OVER(-0.3880482994913853, r), OVER(-0.12839502985152107, r), OVER(0.12839502985152107, r), \
        OVER(0.3880482994913853, r), OVER(0.6567591185342001, r), OVER(0.9423404564892143, r),     \
        OVER(1.2562311973497802, r), OVER(1.6180463860246426, r), OVER(2.0690172265340876, r),     \
        OVER(2.7325895709975616, r)
#define TABLES(r)                                                                                  \
    {                                                                                              \
        {TABLE_4(r)}, {TABLE_3(r), TABLE_3(r)},                                                    \
        {                                                                                          \
            TABLE_2(r), TABLE_2(r), TABLE_2(r), TABLE_2(r)                                         \
        }                                                                                          \
    }

enum { N_GROUP = 4 }; /* 16, 32, 64, 128 */

/* [group][turbo4, turbo3, turbo2][code] */
static const float turbo_tables[N_GROUP][3][KV_CODE_MAX] = {
    TABLES(4.0), TABLES(5.6568542494923806), TABLES(8.0), TABLES(11.313708498984761)};

static const float q4_table[KV_CODE_MAX] = {-8, -7, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7};

const float *kv_codec_table(enum kv_type type, int32_t group)
{
    int32_t i = 0;
    if (type == KV_TYPE_Q4_0)
        return q4_table;
    if (!kv_codecs[type].rotated)
        return NULL;
    while (KV_CODEC_GROUP << i < group)
        i++;
    assert(i < N_GROUP && KV_CODEC_GROUP << i == group);
    return turbo_tables[i][type - KV_TYPE_TURBO4];
}

/* ---- packing ---- */

/* Codes of 4 bits in nibbles, the lower one first. */
static void pack_4(const uint8_t *restrict code, int32_t n, uint8_t *restrict low)
{
    for (int32_t i = 0; i < n / 2; i++)
        low[i] = (uint8_t)(code[2 * i] | code[2 * i + 1] << 4);
}

/* The lower two bits of codes, four in a byte, the lowest first. */
static void pack_2(const uint8_t *restrict code, int32_t n, uint8_t *restrict low)
{
    for (int32_t i = 0; i < n / 4; i++) {
        const uint8_t *c = code + 4 * i;
        low[i] = (uint8_t)((c[0] & 3) | (c[1] & 3) << 2 | (c[2] & 3) << 4 | (c[3] & 3) << 6);
    }
}

/* Bit 2 of codes, eight in a byte, the lowest first. */
static void pack_high(const uint8_t *restrict code, int32_t n, uint8_t *restrict high)
{
    for (int32_t i = 0; i < n / 8; i++) {
        uint32_t bits = 0;
        for (int32_t j = 0; j < 8; j++)
            bits |= (uint32_t)(code[8 * i + j] >> 2 & 1) << j;
        high[i] = (uint8_t)bits;
    }
}

void kv_codes_pack(const uint8_t *code, int32_t n, int32_t bits, uint8_t *low, uint8_t *high)
{
    if (bits == 4)
        pack_4(code, n, low);
    else
        pack_2(code, n, low);
    if (bits == 3)
        pack_high(code, n, high);
}

void kv_codes_unpack(const uint8_t *low, const uint8_t *high, int32_t n, int32_t bits,
                     uint8_t *code)
{
    for (int32_t i = 0; i < n; i++)
        code[i] =
            (uint8_t)(bits == 4 ? low[i / 2] >> 4 * (i % 2) & 15 : low[i / 4] >> 2 * (i % 4) & 3);
    for (int32_t i = 0; bits == 3 && i < n; i++)
        code[i] = (uint8_t)(code[i] | (high[i / 8] >> i % 8 & 1) << 2);
}

/* ---- codes of a table ---- */

/* NaN becomes 0, the rest the nearest value in -limit..limit. */
static inline float clean(float x, float limit)
{
    float y = x < limit ? x : limit;
    y = y > -limit ? y : -limit;
    return x == x ? y : 0.0f;
}

/*
 * With r = rotated x and n = |x|, codes are the nearest centroids of r / (n t). The stretch t is
 * the one with the best direction, that is the largest <r, c>^2 / |c|^2. A short group is not quite
 * Gaussian, and one with a large coordinate needs a wider table. t = 1 gives the specification's
 * codes. The scale is n^2 / <r, c>, which gives the stored group the length of x along x. So sums
 * over many entries, and products with a query, are neither too long nor too short. (The
 * specification's n / |c| has the length of x but along another direction, and shortens sums.) EDEN
 * (Vargaftik et al., ICML 2022, section 3) has this scale.
 */
uint16_t kv_coded_encode(const float *x, int32_t group, const float *centroid, int32_t bits,
                         uint8_t *code)
{
    static const float stretch[] = {1.0f, 0.8f, 0.9f, 1.1f, 1.2f};
    float row[KV_CODEC_MAX];
    float best = 1.0f;
    float xc = 0.0f, most = -1.0f;
    const struct pi_vec_kernels *vec = &pi_kernels()->vec;
    for (int32_t i = 0; i < group; i++)
        row[i] = clean(x[i], F16_MAX);
    double square = vec->sum(row, group, 0.0, true);
    float norm = (float)sqrt(square);
    kv_wht(row, group, group, false);
    for (size_t s = 0; s < PI_LEN(stretch); s++) {
        float along, own;
        vec->table_fit(row, group, centroid, 1 << bits, norm * stretch[s], &along, &own);
        if (along * along <= most * own)
            continue;
        most = along * along / own;
        xc = along;
        best = stretch[s];
    }
    vec->table_codes(row, group, centroid, 1 << bits, norm * best, code);
    if (norm <= LEAST_NORM)
        return 0;
    float scale = (float)(square / (double)xc);
    return pi_f16_from_f32(scale < F16_MAX ? scale : F16_MAX);
}

static void encode(const float *x, int32_t n, int32_t group, enum kv_type type, int32_t bits,
                   const struct kv_row *out)
{
    const float *centroid = kv_codec_table(type, group);
    uint8_t code[KV_CODEC_MAX];
    for (int32_t d = 0; d < n; d += group)
        out->scale[d / group] = kv_coded_encode(x + d, group, centroid, bits, code + d);
    kv_codes_pack(code, n, bits, out->low, out->high);
}

void kv_turbo4_encode(const float *x, int32_t n, int32_t group, const struct kv_row *out)
{
    encode(x, n, group, KV_TYPE_TURBO4, 4, out);
}

void kv_turbo3_encode(const float *x, int32_t n, int32_t group, const struct kv_row *out)
{
    encode(x, n, group, KV_TYPE_TURBO3, 3, out);
}

void kv_turbo2_encode(const float *x, int32_t n, int32_t group, const struct kv_row *out)
{
    encode(x, n, group, KV_TYPE_TURBO2, 2, out);
}

/* ---- q4_0 ---- */

/* One block as ggml's q4_0 has it: d = the value of largest magnitude, the first of equals, / -8;
   code = min(15, trunc(x * (1 / d) + 8.5)). Where the scale that is stored is 0, so are values. */
static uint16_t q4_encode_block(const float *restrict x, uint8_t *restrict code)
{
    float row[Q4_BLOCK], most = 0.0f;
    for (int32_t i = 0; i < Q4_BLOCK; i++)
        row[i] = clean(x[i], F16_MAX * 8);
    for (int32_t i = 0; i < Q4_BLOCK; i++)
        most = fabsf(row[i]) > fabsf(most) ? row[i] : most;
    float d = most / -8;
    uint16_t scale = pi_f16_from_f32(d) & 0x7fff ? pi_f16_from_f32(d) : 0;
    float inverse = scale != 0 ? 1.0f / d : 0.0f;
    for (int32_t i = 0; i < Q4_BLOCK; i++) {
        int32_t c = (int32_t)(row[i] * inverse + 8.5f);
        code[i] = (uint8_t)(c < 15 ? c : 15);
    }
    return scale;
}

void kv_q4_encode(const float *x, int32_t n, int32_t group, const struct kv_row *out)
{
    uint8_t code[KV_CODEC_MAX];
    for (int32_t d = 0; d < n; d += group)
        out->scale[d / group] = q4_encode_block(x + d, code + d);
    kv_codes_pack(code, n, 4, out->low, NULL);
}

/* ---- decoding ---- */

static void decode(const struct kv_stored_row *row, int32_t n, int32_t group, enum kv_type type,
                   int32_t bits, float *out)
{
    const float *table = kv_codec_table(type, group);
    uint8_t code[KV_CODEC_MAX];
    for (int32_t d = 0; d < n; d += group) {
        float scale = pi_f32_from_f16(row->scale[d / group]);
        kv_codes_unpack(row->low + d * (bits == 4 ? 4 : 2) / 8,
                        bits == 3 ? row->high + d / 8 : NULL, group, bits, code);
        for (int32_t i = 0; i < group; i++)
            out[d + i] = scale * table[code[i]];
    }
}

void kv_q4_decode(const struct kv_stored_row *row, int32_t n, int32_t group, float *out)
{
    decode(row, n, group, KV_TYPE_Q4_0, 4, out);
}

void kv_turbo4_decode(const struct kv_stored_row *row, int32_t n, int32_t group, float *out)
{
    decode(row, n, group, KV_TYPE_TURBO4, 4, out);
}

void kv_turbo3_decode(const struct kv_stored_row *row, int32_t n, int32_t group, float *out)
{
    decode(row, n, group, KV_TYPE_TURBO3, 3, out);
}

void kv_turbo2_decode(const struct kv_stored_row *row, int32_t n, int32_t group, float *out)
{
    decode(row, n, group, KV_TYPE_TURBO2, 2, out);
}
