/* mem_used.h - the sums of the library's allocations, tag by tag, so that a test sees a leak. */
#ifndef PI_TEST_MEM_USED_H
#define PI_TEST_MEM_USED_H

#include "base/mem.h"
#include "testing.h"

/* Bytes in use now, out [PI_MEM_N_TAG]. */
static inline void mem_used(int64_t *out)
{
    for (int32_t tag = 0; tag < PI_MEM_N_TAG; tag++)
        out[tag] = pi_mem_used((enum pi_mem_tag)tag);
}

/* Asserts that the sums are unchanged, [PI_MEM_N_TAG]; NULL: all zero. A device's own stays. */
static inline void mem_check(const int64_t *before)
{
    for (int32_t tag = 0; tag < PI_MEM_N_TAG; tag++) {
        int64_t extra = pi_mem_used((enum pi_mem_tag)tag) - (before != NULL ? before[tag] : 0);
        if (extra != 0 && tag != PI_MEM_DEVICE)
            fail_msg("tag %d: %lld bytes leaked", tag, (long long)extra);
    }
}

#endif
