# stage.mk - lets `make 04_fa2 && ./04_fa2` work inside a stage's folder: the rules live in the top Makefile.
.PHONY: $(STAGE)
$(STAGE):
	@$(MAKE) --no-print-directory -C .. $(STAGE)
