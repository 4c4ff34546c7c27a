# stage.mk - in a stage's folder `make` builds the stage, and all that the top Makefile can do is there, too. MAKELEVEL=0: as if
# make had been called there, with all cores.
MAKEFLAGS += --no-print-directory
stage := $(notdir $(lastword $(CURDIR)))
.PHONY: $(stage)
$(stage) .DEFAULT:
	@MAKELEVEL=0 $(MAKE) -C .. $@
