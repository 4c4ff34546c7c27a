# FlashAttention, stage by stage. `make help` lists what this file can do; how files are made, and with which flags, is said in
# common/build.mk. <stage>/<stage> is a link to the program built last.
.DEFAULT_GOAL := help
include common/build.mk
.PHONY: all help clean tests test test-all test-device test-quick test-trace fuzz sanitize mutations mutations-kernels \
        mutations-host trace trace-defects compare sweep ceilings results hopper trace-hopper plots pictures moving site exercise bug lab \
        grade student-tree

# ---- build a stage ------------------------------------------------------------------------------------------------------
all: $(STAGES) ## build every stage

$(STAGES):
	$(if $(filter /%,$(OUT)),,@ln -sfn ../$< $@/$@)
	@echo "$(if $(filter /%,$(OUT)),$<,$@/$@) is built for the $(if $(on_gpu),GPU (arch $(CHIPS)),CPU device): $(REASON)"

clean: ## remove what was built
	rm -rf build $(foreach s,$(STAGES),$s/$s)

help: ## this list
	@sh common/classroom/help.sh '$(STAGES)' $(firstword $(MAKEFILE_LIST))
	@echo "DEVICE=auto|cuda|cpu   now: $(DEVICE) ($(REASON));  ARCH=\"75 80 89 90a\"   now: $(ARCH)"

# ---- tests --------------------------------------------------------------------------------------------------------------
tests: $(UNITS) $(GRIDS) ## build the test programs without running them

# `make test` takes a sixteenth of the grids' points and a third of the trace's problems, and leaves out what takes long and finds
# little.
test: export GRID_EVERY ?= 16
test: ## run the tests on the CPU device, then on the GPU if there is one
	@$(MAKE) test-device DEVICE=cpu
	@$(if $(GNU_CXX),$(MAKE) test-trace,echo "the trace is not tested, because g++ is not installed")
	@$(if $(on_gpu),$(MAKE) test-device DEVICE=cuda,echo "tested on the CPU device only: $(REASON)")

test-all: ## all of them: the whole shape grid (sizes, masks, dtypes), every command and page of the notes
	@$(MAKE) test GRID_EVERY=1 TEST_ALL=1

test-device: $(UNITS) $(GRIDS) $(STAGES) $(PRIMER)
	$(PROVE) $(GRIDS) $(filter-out %/simt_errors,$(UNITS)) $(SCRIPTS)

test-quick: $(UNITS) $(GRIDS) ## run the unit tests and an eighth of the shape grid
	$(PROVE) $(filter-out %/simt_errors,$(UNITS))
	$(PROVE) $(GRIDS) :: --quick

fuzz: $(GRIDS) $(SHORT) ## check each variant on random problems (default N=1000 SEED=1 SECONDS=0: no time limit)
	@failed=0; for fuzz in $^; do \
	    $$fuzz --fuzz $(or $(N),1000) --seed $(or $(SEED),1) --seconds $(or $(SECONDS),0) || failed=1; \
	done; exit $$failed

ifndef on_gpu
sanitize: ## run the shape grid under AddressSanitizer and UBSan (CPU), or all of compute-sanitizer (GPU)
	@ASAN_OPTIONS=allocator_may_return_null=1 $(MAKE) test-quick SANITIZE=address,undefined KERNEL_OPTIMISE='-Og -g1'
else
sanitize: $(GRIDS)
	@sh tests/compute_sanitizer.sh $(GRIDS)
endif

mutations: export GRID_EVERY ?= 3
mutations: ## plant mistakes in kernels and host code, which the tests must catch (default SEED=1 MUTANTS=200)
	@$(MAKE) mutations-kernels DEVICE=cpu && $(MAKE) mutations-host DEVICE=cpu
mutations-kernels mutations-host: mutations-%: tests $(STAGES) $(PRIMER)
	$(PROVE) tests/mutations_$*.t

# ---- what the memory sees -----------------------------------------------------------------------------------------------
ifndef TRACE
trace test-trace trace-defects trace-hopper moving site $(STAGES:%=trace-%) $(STAGES:%=watch-%):
	@$(MAKE) DEVICE=cpu TRACE=1 $@
else
trace: $(PROGRAMS) ## show what all stages' kernels do to memory (TRACE_OPTIONS; DECODE_OPTIONS for decoding)
	@echo 'options: $(call traced,$(NAIVE))$(foreach s,$(DECODING),; $s: $(call traced,$s,$(DECODE_OPTIONS)))'
	@{ $(foreach s,$(STAGES),$(call rows,$s) --trace $(call traced,$s,$(DECODE_OPTIONS));) } | \
	  sh common/classroom/table.sh trace_table

$(STAGES:%=trace-%): ## show one stage in detail, with one table per kernel (TRACE_OPTIONS)
	@$< --trace $(call traced,$(@:trace-%=%),$(TRACE_OPTIONS))

$(STAGES:%=watch-%): watch-%: ## make an HTML page that replays a run step by step: build/watch/<stage>.html (TRACE_OPTIONS)
	@sh common/classroom/watch.sh $(PAGES)/watch/$*.html '$(call traced,$*,$(TRACE_OPTIONS))' $^

MOVING := 01_tiled 03_fa1 04_fa2 05_fa2_backward 07_flash_decoding 08_fa3 10_block_sparse 12_context_parallel
moving: $(foreach s,$(MOVING),$(OUT)/$s/$s) ## draw the animated pictures of the notes from traces: notes/pictures/moving_*.svg
	@python3 -B common/plots/moving.py $(OUT)

site: $(foreach s,03_fa1 04_fa2 05_fa2_backward 07_flash_decoding 08_fa3 10_block_sparse,$(OUT)/$s/$s) ## make HTML of the notes and of runs, for any web server (DIR=folder)
	@python3 -B common/plots/site.py '$(DIR)' $(OUT)

trace-hopper: hopper

test-trace: $(OUT)/tests/trace $(PROGRAMS) $(PRIMER) ## test the trace alone: accesses counted by hand, bytes against the formulas, and no races
	$(PROVE) $< tests/trace.t tests/trace_output.t tests/watch.t tests/moving.t tests/site.t tests/notebook.t tests/primer.t

trace-defects: $(PROGRAMS) ## test the trace by mutation: it must name each barrier removed, and each of three bad layouts
	$(PROVE) tests/trace_defects.t
endif

$(STAGES:%=profile-%): profile-%: $(if $(on_gpu),%) ## read the hardware counters of its kernels with ncu (VARIANT, PROFILE_OPTIONS)
	@VARIANT='$(VARIANT)' sh common/classroom/profile.sh $(DEVICE) $(OUT)/$*/$* $(PROFILE_OPTIONS)

# ---- classroom ----------------------------------------------------------------------------------------------------------
compare: $(PROGRAMS) ## time all stages, one table per problem (COMPARE_OPTIONS, DECODE_OPTIONS; PLOT=1 draws them)
	@$(if $(PLOT),mkdir -p $(dir $(PICTURE)))
	@{ $(foreach s,$(filter-out $(DECODING),$(STAGES)),$(call rows,$s) $(COMPARE_OPTIONS);) \
	   $(foreach s,$(DECODING),$(call rows,$s) $(DECODE_OPTIONS);) } | \
	  sh common/classroom/table.sh compare $(if $(PLOT),plot=$(PICTURE).tsv)
	@$(if $(PLOT),python3 -B common/plots/compare.py $(PICTURE).tsv $(PICTURE))

sweep: $(PROGRAMS) ## time many shapes: notes/results/<device>/sweep.csv; resumes (common/classroom/sweep.sh)
	@sh common/classroom/sweep.sh $(PROGRAMS)

ceilings: $(if $(on_gpu),$(CEILINGS)) ## measure how fast each part of this GPU is alone, as in notes/results/<device>/ceilings.tsv
	$(if $(on_gpu),@$<,$(needs_gpu))

ifneq ($(if $(on_gpu),$(filter 90,$(GPU_CC)),cpu),)
hopper: $(PRIMER) ## run Hopper's instructions one at a time: notes/hopper.md; make trace-hopper: under the trace
	@$(PRIMER:%=% &&) true
else
hopper: # no such GPU
	@$(MAKE) DEVICE=cpu $@
endif

results: $(if $(on_gpu),$(STAGES) $(CEILINGS),$(PROGRAMS)) ## measure this GPU in ten minutes: notes/results/<device>/; resumes (PARTS)
	@sh common/results/$(if $(on_gpu),measure,cpu).sh $(OUT)

plots: ## draw the results measured last into pictures/ beside them; needs Python with matplotlib
	@python3 -B common/plots/plots.py $(PLOT_OPTIONS)
pictures: ## redraw notes/pictures/, as the notes show them
	@python3 -B common/plots/pictures.py && python3 -B common/plots/plots.py notes/results/nvidia-h200 notes/pictures

diff-%: ## compare kernels: diff-04 (with what 04 builds on), diff-03-04, or diff-loop_swap-split_q
	@sh common/classroom/diff.sh $*

exercise: ## do an exercise: N=04.1 (note 04's first), then ANSWER=.. or HINT=1; without N: a list
	@HINT='$(HINT)' $(in_sh) common/classroom/exercise.sh '$(N)' '$(ANSWER)'

lab: ## write a kernel: N=04 hands out labs/04/kernel.cu, then judges it (HINT=1); without N: a list
	@$(if $(on_gpu),$(MAKE) DEVICE=cpu GPU_OUT='$(OUT)' $@,GPU_OUT='$(GPU_OUT)' HINT='$(HINT)' SEED='$(SEED)' LABS='$(LABS)' $(in_sh) common/labs/lab.sh '$(N)')
grade: ## judge a course's labs: SUBMISSIONS/<student>/04/kernel.cu (JOBS, SEED, CPU_SECONDS, MEMORY_MB)
	@SEED='$(SEED)' JOBS='$(JOBS)' CPU_SECONDS='$(CPU_SECONDS)' $(if $(MEMORY_MB),MEMORY_MB='$(MEMORY_MB)') $(in_sh) common/labs/grade.sh '$(SUBMISSIONS)'
student-tree: ## copy the tree to DIR without solutions, the exam, and the labs' kernels (N="02 04": of these)
	@sh common/labs/student_tree.sh '$(DIR)' $(N)

bug: ## plant a mistake in a copy and guess what catches it: N=04.12; BLIND=1: find it; without N: a list
	@$(if $(on_gpu),$(MAKE) DEVICE=cpu $@,BLIND='$(BLIND)' $(in_sh) common/classroom/bug.sh '$(N)' '$(ANSWER)')
