/*
 * seq_make.h - a sequence of an engine, for tests that expect to get one.
 */
#ifndef PI_TEST_SEQ_MAKE_H
#define PI_TEST_SEQ_MAKE_H

#include "status.h"

static inline pith_seq *seq_make(pith_engine *e)
{
    pith_seq *seq = NULL;
    check(pith_seq_create(e, &seq, &err), &err);
    return seq;
}

#endif
