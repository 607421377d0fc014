/*
 * row.h - the logits behind a sequence's last token. On a device that finds the best tokens itself
 * the row stays there, and comes when it is asked for. The host has the best tokens. Over ranks
 * each keeps its part of a row likewise.
 */
#ifndef PI_ROW_H
#define PI_ROW_H

#include "device/device.h"

struct pith_seq;

struct pi_row {
    struct pi_at at; /* [n_vocab] on the device; owned */
    bool there;      /* the row is there, and `logits` of the sequence is of before */
    struct pi_best best;
};

/* Room on the device. Where there is none, rows come to the host as ever. */
void pi_row_open(struct pith_seq *seq);
void pi_row_free(struct pith_seq *seq);
/* From now on `logits` of the sequence has the row. */
void pi_row_is_here(struct pith_seq *seq);
/* The best tokens of the row; NULL: they are not known, or there is no row. */
const struct pi_best *pi_row_best(const struct pith_seq *seq);

#endif
