/*
 * kernels.c - which kernels this processor runs. It owns the detection of processor features and
 * the published table; it must not know what any kernel computes. Invariant: a table is complete
 * before its address is published, and published tables never change.
 */
#define _DEFAULT_SOURCE /* syscall */

#include <pthread.h>
#include <stdatomic.h>
#include <strings.h>

#if defined(PITH_HAVE_AVX2) || defined(PITH_HAVE_AVX512)
#include <cpuid.h>
#endif
#if defined(PITH_HAVE_AMX)
#include <sys/syscall.h>
#include <unistd.h>
#endif
#if defined(PITH_HAVE_NEON) && defined(__linux__)
#include <sys/auxv.h>
#endif

#include "cpu/kernels.h"

static const char *const level_names[PI_CPU_N_LEVEL] = {"scalar", "avx2", "avx512", "amx", "neon"};

const char *pi_cpu_level_name(enum pi_cpu_level level)
{
    return level_names[level];
}

/* ---- detection ---------------------------------------------------------------------------- */

#if defined(PITH_HAVE_AVX2) || defined(PITH_HAVE_AVX512)

/* CPUID leaves 1, 7 and 7.1, and the register states that the operating system saves (XCR0). */
struct x86_features {
    uint32_t leaf1_ecx;
    uint32_t leaf7_ebx;
    uint32_t leaf7_ecx;
    uint32_t leaf7_edx;
    uint32_t leaf7_1_eax;
    uint32_t xcr0;
};

enum {
    XCR0_AVX = 0x06,    /* xmm and upper ymm */
    XCR0_AVX512 = 0xe6, /* and opmask, upper zmm, zmm16..31 */
    XCR0_TILES = 3 << 17,
};

static uint32_t read_xcr0(void)
{
    uint32_t low, high;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return low;
}

static struct x86_features detected; /* by detect, once */

static void detect(void)
{
    struct x86_features *f = &detected;
    uint32_t a, b, c, d;
    if (!__get_cpuid(1, &a, &b, &c, &d))
        return;
    f->leaf1_ecx = c;
    if (__get_cpuid_count(7, 0, &a, &b, &c, &d)) {
        f->leaf7_ebx = b;
        f->leaf7_ecx = c;
        f->leaf7_edx = d;
        if (a >= 1 && __get_cpuid_count(7, 1, &a, &b, &c, &d))
            f->leaf7_1_eax = a;
    }
    if (f->leaf1_ecx & bit_OSXSAVE)
        f->xcr0 = read_xcr0();
}

/* CPUID takes tens of microseconds where a hypervisor answers it. */
static struct x86_features x86_detect(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, detect);
    return detected;
}

static bool has_all(uint32_t value, uint32_t bits)
{
    return (value & bits) == bits;
}

static bool has_avx2(void)
{
    struct x86_features f = x86_detect();
    return has_all(f.leaf1_ecx, bit_OSXSAVE | bit_AVX | bit_FMA | bit_F16C) &&
           has_all(f.leaf7_ebx, bit_AVX2) && has_all(f.xcr0, XCR0_AVX);
}

/* One bundle: every part that the AVX-512 files are compiled with. */
static bool has_avx512(void)
{
    struct x86_features f = x86_detect();
    return has_avx2() && has_all(f.xcr0, XCR0_AVX512) &&
           has_all(f.leaf7_ebx, bit_AVX512F | bit_AVX512BW | bit_AVX512DQ | bit_AVX512VL) &&
           has_all(f.leaf7_ecx, bit_AVX512VNNI | bit_AVX512VBMI);
}

/* The additional feature that two files need. */
static bool has_avx512_bf16(void)
{
    const uint32_t bf16 = 1u << 5;
    struct x86_features f = x86_detect();
    return has_avx512() && has_all(f.leaf7_ebx, bit_BMI2) && has_all(f.leaf7_1_eax, bf16);
}

#if defined(PITH_HAVE_AMX)
/* Linux saves tiles only for processes that ask for it, once. */
static bool has_amx(void)
{
    const uint32_t tile = 1u << 24, int8 = 1u << 25;
    const long ask_permission = 0x1023, tile_data = 18;
    struct x86_features f = x86_detect();
    return has_avx512() && has_all(f.xcr0, XCR0_TILES) && has_all(f.leaf7_edx, tile | int8) &&
           syscall(SYS_arch_prctl, ask_permission, tile_data) == 0;
}
#endif

enum vendor { VENDOR_OTHER, VENDOR_INTEL, VENDOR_AMD };

static enum vendor x86_vendor(void)
{
    uint32_t a, b, c, d;
    if (!__get_cpuid(0, &a, &b, &c, &d))
        return VENDOR_OTHER;
    if (b == signature_INTEL_ebx && c == signature_INTEL_ecx && d == signature_INTEL_edx)
        return VENDOR_INTEL;
    if (b == signature_AMD_ebx && c == signature_AMD_ecx && d == signature_AMD_edx)
        return VENDOR_AMD;
    return VENDOR_OTHER;
}

/* Whether vdpbf16ps adds pairs faster than fused multiply-adds add their numbers one by one, to the
   same bits. On a Granite Rapids it takes four times as long, so that attention of many rows over
   bf16 is 1.4 times as fast without it. */
static bool has_fast_pairs(void)
{
    return has_avx512_bf16() && x86_vendor() == VENDOR_AMD;
}

#define FAMILY_ZEN_4 0x19 /* which is Zen 3's, too, but that has no AVX-512 */

/* Whether kernels prefetch lines into the second level of cache, one by one beside the arithmetic
   (attend.h, matmul.h: far). Intel's first level has at most 10 to 16 outstanding lines, its second
   up to 48. On an Emerald Rapids this made attention over f16 in memory 10 % faster. The second
   level also fetches the neighbour of each line by itself, so prefetching that neighbour right
   after the line costs time. On a Granite Rapids, spreading the prefetches gains 12 % in attention.
   Products with one token gain 6 % (Q8_0 in memory) to 50 % (Q6_K in the last level). On a Zen 4,
   products of one token gain 46 % (Q4_K), 35 % (Q6_K) and 13 % (Q8_0), and products of four 39 to
   75 %. Generation after 8,192 entries gains 4 %. Other processors prefetch into the first level,
   which was faster on a Zen 5. */
static bool asks_far(void)
{
    uint32_t a, b, c, d;
    enum vendor vendor = x86_vendor();
    if (vendor != VENDOR_AMD)
        return vendor == VENDOR_INTEL;
    return __get_cpuid(1, &a, &b, &c, &d) && (a >> 8 & 15) + (a >> 20 & 255) == FAMILY_ZEN_4;
}

#endif

#if defined(PITH_HAVE_NEON)

/* The dot product instructions and half-float arithmetic of Armv8.2. */
static bool has_neon_dot(void)
{
#if defined(__linux__)
    const unsigned long asimd_dot = 1ul << 20, asimd_half = 1ul << 10;
    return (getauxval(AT_HWCAP) & (asimd_dot | asimd_half)) == (asimd_dot | asimd_half);
#else
    return true; /* every 64-bit Apple processor has both */
#endif
}

#endif

bool pi_kernels_fill(enum pi_cpu_level level, struct pi_kernels *out)
{
    struct pi_kernels k = {.level = level};
    pi_matmul_init_scalar(&k.matmul);
    pi_attend_init_scalar(&k.attend);
    pi_vec_init_scalar(&k.vec);
    pi_score_init_scalar(&k.score);
    pi_move_init_scalar(&k.move);
    bool found = level == PI_CPU_SCALAR;
#if defined(PITH_HAVE_AVX2)
    if ((level == PI_CPU_AVX2 || level == PI_CPU_AVX512 || level == PI_CPU_AMX) && has_avx2()) {
        pi_matmul_init_avx2(&k.matmul);
        pi_attend_init_avx2(&k.attend);
        pi_vec_init_avx2(&k.vec);
        pi_score_init_avx2(&k.score);
        found = level == PI_CPU_AVX2;
    }
#endif
#if defined(PITH_HAVE_AVX512)
    if ((level == PI_CPU_AVX512 || level == PI_CPU_AMX) && has_avx512()) {
        pi_matmul_init_avx512(&k.matmul);
        pi_attend_init_avx512(&k.attend);
        if (has_avx512_bf16())
            pi_attend_init_avx512_bf16(&k.attend);
        if (has_fast_pairs())
            pi_attend_init_avx512_pairs(&k.attend);
        pi_vec_init_avx512(&k.vec);
        pi_score_init_avx512(&k.score);
        pi_move_init_avx512(&k.move);
        found = level == PI_CPU_AVX512;
    }
#endif
#if defined(PITH_HAVE_AMX)
    if (level == PI_CPU_AMX && has_amx()) {
        pi_matmul_init_amx(&k.matmul);
        found = true;
    }
#endif
#if defined(PITH_HAVE_NEON)
    if (level == PI_CPU_NEON && has_neon_dot()) {
        pi_matmul_init_neon(&k.matmul);
        pi_attend_init_neon(&k.attend);
        pi_vec_init_neon(&k.vec);
        pi_score_init_neon(&k.score);
        found = true;
    }
#endif
#if defined(PITH_HAVE_AVX2) || defined(PITH_HAVE_AVX512)
    k.attend.far = k.matmul.far = asks_far();
#endif
    if (found)
        *out = k;
    return found;
}

/* ---- the table in use --------------------------------------------------------------------- */

static struct pi_kernels tables[PI_CPU_N_LEVEL]; /* guarded by lock until published */
static bool filled[PI_CPU_N_LEVEL];              /* guarded by lock */
static atomic_flag lock = ATOMIC_FLAG_INIT;
static _Atomic(const struct pi_kernels *) current; /* NULL before the first use */

/* The table of a level, NULL when this processor or build lacks it. Held a few microseconds, and
   only at first use, the lock may spin. */
static const struct pi_kernels *table_of(enum pi_cpu_level level)
{
    while (atomic_flag_test_and_set_explicit(&lock, memory_order_acquire)) {
    }
    if (!filled[level])
        filled[level] = pi_kernels_fill(level, &tables[level]);
    const struct pi_kernels *table = filled[level] ? &tables[level] : NULL;
    atomic_flag_clear_explicit(&lock, memory_order_release);
    return table;
}

static const struct pi_kernels *best_table(void)
{
    static const enum pi_cpu_level order[] = {PI_CPU_AMX, PI_CPU_AVX512, PI_CPU_AVX2, PI_CPU_NEON};
    for (size_t i = 0; i < PI_LEN(order); i++) {
        const struct pi_kernels *table = table_of(order[i]);
        if (table != NULL)
            return table;
    }
    return table_of(PI_CPU_SCALAR);
}

const struct pi_kernels *pi_kernels(void)
{
    const struct pi_kernels *table = atomic_load_explicit(&current, memory_order_acquire);
    if (table == NULL) {
        table = best_table();
        atomic_store_explicit(&current, table, memory_order_release);
    }
    return table;
}

const char *pith_cpu_level(void)
{
    return level_names[pi_kernels()->level];
}

pith_status pith_cpu_level_set(const char *level, pith_error *err)
{
    if (level == NULL) {
        atomic_store_explicit(&current, best_table(), memory_order_release);
        return PITH_OK;
    }
    for (int32_t i = 0; i < PI_CPU_N_LEVEL; i++) {
        if (strcasecmp(level, level_names[i]) != 0)
            continue;
        const struct pi_kernels *table = table_of((enum pi_cpu_level)i);
        if (table == NULL)
            return pi_fail(err, PITH_UNSUPPORTED, "cpu level: this processor or build lacks '%s'",
                           level);
        atomic_store_explicit(&current, table, memory_order_release);
        return PITH_OK;
    }
    return pi_fail(err, PITH_INVALID, "cpu level: '%s' is none of scalar, avx2, avx512, amx, neon",
                   level);
}
