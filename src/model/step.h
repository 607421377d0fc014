/*
 * step.h - a pass of one token as one operation of its device.
 */
#ifndef PI_STEP_H
#define PI_STEP_H

#include "model/pass.h"

/* Room for its lists, where the device and the model have the operation; false: no memory. */
bool pi_step_create(struct pi_pass *pass);
void pi_step_free(struct pi_pass *pass);

/* Whether the running pass may go that way: one token, alone, without taps or policies that look
   into it. */
bool pi_step_may(const struct pi_pass *pass);
/* All layers of the pass, and its logits, from the embedding on; false: nothing is done. */
bool pi_step_run(struct pi_pass *pass);

#endif
