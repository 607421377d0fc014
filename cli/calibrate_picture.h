/*
 * calibrate_picture.h - `pith calibrate inspect --html`: a page of drawings of one text.
 */
#ifndef CLI_CALIBRATE_PICTURE_H
#define CLI_CALIBRATE_PICTURE_H

#include "calibrate.h"
#include "pith/calibrate.h"

/* Reads the tokens [n] in the session's sequence, which is empty and whose passes hold all of them.
   Writes the page to path: of a layer's query head, and of blocks over all layers. */
void calibrate_picture(struct session *s, const pith_stats *stats, const int32_t *tokens, int32_t n,
                       int32_t layer, int32_t head, const char *path);

#endif
