/* calibrate_all.h - `pith calibrate MODEL`: all that policies want, with no option. */
#ifndef CALIBRATE_ALL_H
#define CALIBRATE_ALL_H

#include "calibrate.h"

/* Learns from the texts that come with Pith, and keeps the result where commands find it. The exit
   status. */
int calibrate_all(struct calibrate_options *o, bool progress);

#endif
