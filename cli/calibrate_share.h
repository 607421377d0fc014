/* calibrate_share.h - the part of `pith calibrate` that finds thresholds for `--share`. */
#ifndef CALIBRATE_SHARE_H
#define CALIBRATE_SHARE_H

#include "session.h"

/* The text that is read. */
struct share_source {
    const struct cli_ids *ids;
    int32_t n_generate; /* tokens that the model writes after them; 0: they are the steps
                           themselves */
    float temperature;
    int64_t seed;
};

/* Whether a policy can be calibrated; fails (usage) where not. */
void share_calibrate_check(const char *share);

/* Compares the pages of all steps, shares none, and prints how far apart they are. It tells pages
   of like steps with the same tokens, such pages with others, and pages at random. memory's share
   policy is the one whose options count. */
void share_calibrate(struct session *s, const struct model_options *m,
                     const struct memory_options *memory, const struct share_source *from);

/* The threshold that block=auto would come to after such a text. It prints nothing. 0: pages of
   its steps are too few, or the model cannot share. */
double share_threshold(const struct session *s, const struct model_options *m,
                       const struct memory_options *memory, const struct share_source *from);

#endif
