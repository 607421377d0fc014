/*
 * attend_neon.c - attention over a page with registers of 4 floats. Only the operations stand here;
 * their order is attend_tile.h's.
 */
#include "cpu/codes_neon.h"
#include "cpu/kernels.h"
#include "cpu/lanes_neon.h"

enum { VEC = 4, LANES = 1, TILE_ROWS_TALL = 12, EXP_VECS = 4 };

typedef uint8x16_t bits;
typedef uint32x4_t vmask;
typedef int32x4_t vint;

static inline vec vec_add(vec a, vec b)
{
    return vaddq_f32(a, b);
}
static inline vec vec_sub(vec a, vec b)
{
    return vsubq_f32(a, b);
}
static inline float vec_max_all(vec v)
{
    return vmaxvq_f32(v);
}

static inline float vec_tree(const vec *v)
{
    vec four = vaddq_f32(vaddq_f32(v[0], v[2]), vaddq_f32(v[1], v[3]));
    float32x2_t two = vadd_f32(vget_low_f32(four), vget_high_f32(four));
    return vget_lane_f32(two, 0) + vget_lane_f32(two, 1);
}

static inline void vec_max_rows(const vec *v, float *out)
{
    for (int32_t i = 0; i < 16; i++)
        out[i] = vec_max_all(v[i]);
}
static inline void vec_tree_rows(vec (*v)[4], float *out)
{
    for (int32_t i = 0; i < 16; i++)
        out[i] = vec_tree(v[i]);
}

static inline vec vec_pow2(vec y, vec t)
{
    uint32x4_t n = vshlq_n_u32(vreinterpretq_u32_f32(t), 23);
    return vreinterpretq_f32_u32(vaddq_u32(vreinterpretq_u32_f32(y), n));
}

static inline vec vec_bf16(vec x)
{
    uint32x4_t b = vreinterpretq_u32_f32(x);
    uint32x4_t odd = vandq_u32(vshrq_n_u32(b, 16), vdupq_n_u32(1));
    b = vaddq_u32(vaddq_u32(b, vdupq_n_u32(0x7fff)), odd);
    return vreinterpretq_f32_u32(vandq_u32(b, vdupq_n_u32(0xffff0000u)));
}

static inline vec vec_load_f16_step(const uint16_t *p, int32_t step)
{
    if (step == 1)
        return vec_load_f16(p);
    uint16x4_t all = vdup_n_u16(p[0]);
    all = vld1_lane_u16(p + step, all, 1);
    all = vld1_lane_u16(p + 2 * step, all, 2);
    all = vld1_lane_u16(p + 3 * step, all, 3);
    return vcvt_f32_f16(vreinterpret_f16_u16(all));
}

static inline vec vec_load_i8(const int8_t *p)
{
    uint32_t codes;
    memcpy(&codes, p, sizeof(codes));
    int16x8_t wide = vmovl_s8(vreinterpret_s8_u32(vdup_n_u32(codes)));
    return vcvtq_f32_s32(vmovl_s16(vget_low_s16(wide)));
}

static inline vec vec_load_code(const uint8_t *p, int32_t i)
{
    uint8x16_t words = vld1q_u8(p);
    uint32x4_t places = {0x00ffffffu, 0x04ffffffu, 0x08ffffffu, 0x0cffffffu};
    places = vaddq_u32(places, vdupq_n_u32((uint32_t)i << 24));
    return vcvtq_f32_s32(vreinterpretq_s32_u8(vqtbl1q_u8(words, vreinterpretq_u8_u32(places))));
}

static inline vec vec_load_part(const float *p, int32_t n)
{
    float all[4] = {0};
    for (int32_t i = 0; i < n; i++)
        all[i] = p[i];
    return vld1q_f32(all);
}

static inline vec vec_load_f16_part(const uint16_t *p, int32_t n)
{
    uint16_t all[4] = {0};
    for (int32_t i = 0; i < n; i++)
        all[i] = p[i];
    return vec_load_f16(all);
}

static inline vec vec_load_bf16_part(const uint16_t *p, int32_t n)
{
    uint16_t all[4] = {0};
    for (int32_t i = 0; i < n; i++)
        all[i] = p[i];
    return vec_load_bf16(all);
}

static inline vec vec_load_i8_part(const int8_t *p, int32_t n)
{
    int8_t all[4] = {0};
    for (int32_t i = 0; i < n; i++)
        all[i] = p[i];
    return vec_load_i8(all);
}

static inline void vec_store_part(float *p, vec v, int32_t n)
{
    float all[4];
    vst1q_f32(all, v);
    for (int32_t i = 0; i < n; i++)
        p[i] = all[i];
}

static inline vmask mask_visible(const int32_t *pos, int32_t limit, int32_t n)
{
    static const int32_t lanes[4] = {0, 1, 2, 3};
    uint32x4_t used = vcltq_s32(vld1q_s32(lanes), vdupq_n_s32(n));
    return vandq_u32(used, vcleq_s32(vld1q_s32(pos), vdupq_n_s32(limit)));
}

static inline vmask mask_below(vec a, vec b)
{
    return vcltq_f32(a, b);
}
static inline uint32_t mask_bits(vmask m)
{
    static const uint32_t lanes[4] = {1, 2, 4, 8};
    return vaddvq_u32(vandq_u32(m, vld1q_u32(lanes)));
}
static inline vec mask_pick(vmask m, vec a, vec b)
{
    return vbslq_f32(m, a, b);
}

static inline bits bits_load(const uint8_t *p, size_t step)
{
    (void)step;
    return vld1q_u8(p);
}

TILE bits bits_zip_low(const int32_t size, bits a, bits b)
{
    uint32x4_t a4 = vreinterpretq_u32_u8(a), b4 = vreinterpretq_u32_u8(b);
    uint16x8_t a2 = vreinterpretq_u16_u8(a), b2 = vreinterpretq_u16_u8(b);
    return size == 4 ? vreinterpretq_u8_u32(vzip1q_u32(a4, b4))
                     : vreinterpretq_u8_u16(vzip1q_u16(a2, b2));
}

TILE bits bits_zip_high(const int32_t size, bits a, bits b)
{
    uint32x4_t a4 = vreinterpretq_u32_u8(a), b4 = vreinterpretq_u32_u8(b);
    uint16x8_t a2 = vreinterpretq_u16_u8(a), b2 = vreinterpretq_u16_u8(b);
    return size == 4 ? vreinterpretq_u8_u32(vzip2q_u32(a4, b4))
                     : vreinterpretq_u8_u16(vzip2q_u16(a2, b2));
}

/* A register is one lane: never asked for. */
static inline bits bits_even(bits a, bits b)
{
    (void)b;
    return a;
}
static inline bits bits_odd(bits a, bits b)
{
    (void)b;
    return a;
}

static inline void bits_store(uint8_t *p, bits x, int32_t n)
{
    (void)n;
    vst1q_u8(p, x);
}

/* As assembly because GCC takes functions that only prefetch for pure and drops the calls. */
static inline void line_prefetch(const void *p)
{
    __asm__ volatile("prfm pldl1keep, %0" : : "Q"(*(const char *)p));
}

static inline void line_prefetch_far(const void *p)
{
    __asm__ volatile("prfm pldl2keep, %0" : : "Q"(*(const char *)p));
}

/* Up to 24 sums, 4 values and a broadcast share 32 registers. */
static inline int32_t tile_vecs(int32_t n_row)
{
    return n_row <= 6 ? 4 : 2;
}

/* The same where codes, their remainders, and their scales or tables need registers, too: a table
   alone fills four of them. */
static inline int32_t code_key_vecs(int32_t n_row)
{
    (void)n_row;
    return 2;
}

static inline int32_t code_value_vecs(int32_t n_row)
{
    (void)n_row;
    return 2;
}

static inline vint vint_load(const uint8_t *p)
{
    return vreinterpretq_s32_u8(vld1q_u8(p));
}
static inline vint vint_set1(const uint32_t *p)
{
    return vreinterpretq_s32_u32(vdupq_n_u32(*p));
}
static inline vint vint_start(int32_t sum)
{
    (void)sum;
    return vdupq_n_s32(0);
}
static inline vint vint_dot(vint acc, vint k, vint q)
{
    return vdotq_s32(acc, vreinterpretq_s8_s32(k), vreinterpretq_s8_s32(q));
}
static inline vec vint_floats(vint v)
{
    return vcvtq_f32_s32(v);
}

/* Two sums each. */
static inline int32_t coded_vecs(int32_t n_row)
{
    return n_row <= 3 ? 4 : 2;
}

#include "cpu/attend_tile.h"

void pi_attend_init_neon(struct pi_attend_kernels *k)
{
    attend_init(k);
}
