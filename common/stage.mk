# stage.mk - in a stage's folder `make` builds the stage, and all that the top Makefile can do is there, too.
MAKEFLAGS += --no-print-directory --jobs=$(shell getconf _NPROCESSORS_ONLN)
.PHONY: $(notdir $(CURDIR))
$(notdir $(CURDIR)) .DEFAULT:
	@$(MAKE) -C .. $@
