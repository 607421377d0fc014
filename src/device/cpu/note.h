/*
 * note.h - notes of the weights that a token gave (kv/note.h).
 */
#ifndef PI_DEVICE_CPU_NOTE_H
#define PI_DEVICE_CPU_NOTE_H

#include "device/cpu/cpu.h"
#include "kv/attend.h"
#include "kv/lane.h"

/* The weights that a token's queries gave to the first n entries of a lane, which it sees. */
struct cpu_noted {
    const float *weight; /* [n_group][stride] */
    size_t stride;
    const struct kv_weight_parts *parts; /* of NORM alone; NULL: weight is what it says */
    const float *max, *sum;              /* [n_group] of NORM alone */
    int32_t n_group;
    int32_t n;
    int32_t pos;
    float *factor; /* [n_group] scratch of NORM */
};

void cpu_note_token(const struct kv_note *note, const struct cpu_noted *t);

/* Whether a call's notes take weights in parts; and the notes of a call whose tap is filled.
   factor [n_group] is scratch. */
bool cpu_notes_take_parts(const struct kv_attend_job *job);
void cpu_note_job(const struct kv_attend_job *job, float *factor);

#endif
