/*
 * recorder.h - the tensors of a run as a file, whose arrays docs/record.md describes: it collects
 * what the tap of an engine shows.
 */
#ifndef PI_EVAL_RECORDER_H
#define PI_EVAL_RECORDER_H

#include "pith/inspect.h"

struct eval_recorder;

/* Records every token that is evaluated into seq, which must be empty, by the engine's tap, until
   the recorder is freed. Other sequences are left out. path is tried first, so that a run need not
   end in "no such folder". seq is borrowed. INVALID, IO, NOMEM. */
pith_status eval_recorder_create(pith_seq *seq, const char *path, struct eval_recorder **out,
                                 pith_error *err);
void eval_recorder_free(struct eval_recorder *r); /* takes the tap away; NULL is ignored */

/* NOMEM with a sentence once memory lacked for a token; the evaluation was then CANCELLED. */
pith_status eval_recorder_status(const struct eval_recorder *r, pith_error *err);

/* Writes the tokens that the sequence holds now. INVALID (no token), IO, NOMEM. */
pith_status eval_recorder_write(const struct eval_recorder *r, pith_error *err);

#endif
