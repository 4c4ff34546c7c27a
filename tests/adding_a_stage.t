#!/usr/bin/env perl
# adding_a_stage.t - does what notes/adding_a_stage.md says, word by word, in a copy of the tree: writes the files that the page
# shows, adds the line to the ladder, runs the commands. The stage must then be everywhere where stages are. Its names alone
# are others, the stage's of 20 characters: tables must have room for them.
use strict;
use warnings;
use utf8;
use Cwd qw(getcwd);
use File::Temp qw(tempdir);
use Test::More;
use lib 'tests';
use Program qw(stages);

plan skip_all => 'the CPU device will do for a page' if ($ENV{TEST_DEVICE} // 'cpu') ne 'cpu';
my $build = $ENV{TEST_BUILD} || 'build/cpu';
plan skip_all => 'make test-all asks it' if !$ENV{TEST_ALL};
plan skip_all => "the page says build/cpu, this is $build" if $build ne 'build/cpu';
my ($commit) = map { m{commit-(.*)} } glob "$build/commit-*"; # what has been built is taken as it is
@ENV{'DEVICE', 'COMMIT'} = ('cpu', $commit // 'unknown');
delete @ENV{'MAKEFLAGS', 'MAKELEVEL'};

my $page = read_text('notes/adding_a_stage.md') =~ s/13_warp_row/13_one_warp_each_row/gr =~ s/\bwarp_row/warp_each_row/gr;
my $tree = tempdir(CLEANUP => 1);
my @builds = grep { -d } 'build/cpu', 'build/cpu-trace';
system("cp -a Makefile README.md common tests notes @{[stages()]} '$tree' && mkdir '$tree/build' && cp -a @builds '$tree/build'") == 0
    or BAIL_OUT("cannot copy the tree to $tree");
chdir $tree or BAIL_OUT("$tree: $!");

# ---- the files: a block is the file that the paragraph before it names last; the one for the ladder is added to it
my (@written, $line);
while ($page =~ /`([\w\/.]+)`(?:(?!`[\w\/.]+`|```).)*?\n\n```(c|make|markdown|text)\n(.*?)^```$/msg) {
    my ($file, $kind, $text) = ($1, $2, $3);
    mkdir $1 if $file =~ /^(\w+)\//;
    ok($kind eq 'text' || !-e $file, "$file is new") if $file ne 'common/ladder.txt';
    write_text($kind eq 'text' ? '>>' : '>', $file, $text);
    push @written, $file;
    $line = $text if $kind eq 'text';
}
my ($stage) = ($line // '') =~ /^(\w+)/ or BAIL_OUT('the page has no line for the ladder');
is_deeply([grep { !/^\Q$stage\E\// } @written], ["notes/$stage.md", 'common/ladder.txt'], "a folder, a note and a line: @written");

# ---- the commands
my %printed;
for my $command (map { split /\n/ } $page =~ /^```sh new\n(.*?)^```$/msg) {
    local $ENV{GRID_EVERY} = 24;
    local $ENV{TRACE_OPTIONS} = '--heads 1 --seqlen 128';
    my $output = `@{[$command =~ s/ --quick//r]} 2>&1 </dev/null`; # the long row and the large grids, too
    is($?, 0, $command) or diag($output);
    utf8::decode($output);
    $printed{$command =~ /^make compare/ ? 'compare' : $command =~ /--quick/ ? 'grid' : $command =~ /trace/ ? 'trace' : 'run'} .= $output;
}
my $words = '[^\n]*';
like($printed{run}, qr/^$stage\/\w+ $words\d$words (?:us|ms|s) $words\n(?:$words\n)*PASS  1 variant agrees with 00_naive$/m, 'it runs, and is right');
like($printed{compare}, qr/^$stage\/\w+\n {20} +\d$words \/ $words\n/m, 'make compare has it');
like($printed{compare}, qr/^PASS  \d+ variants agree/m, 'and all are right');
like($printed{grid}, qr/^ok \d+ - $stage\/\w+ fp16 D64 causal: /m, 'its grid');
unlike($printed{grid}, qr/^not ok/m, 'passes');

# ---- the trace: bytes by the formula, and nothing left out
my @rows = grep { /"tensor"/ } `build/cpu-trace/$stage/$stage --trace --json --heads 2 --kv-heads 1 --seqlen 20 --seqlen-k 33 --causal`;
cmp_ok(scalar @rows, '>=', 4, 'the trace has a row a tensor');
for my $row (@rows) {
    my %is = $row =~ /"(\w+)": "?([^",}]*)/g;
    is("$is{bytes_read} $is{bytes_written}", "$is{formula_read} $is{formula_written}", "bytes of $is{tensor}");
}
like($printed{trace}, qr/^no races$/m, 'and no races');

# ---- its name fits
write_text('>', 'rows', join '', @rows, `build/cpu-trace/$stage/$stage --trace --json --heads 1 --seqlen 40`);
my $table = `awk -f common/classroom/rows.awk -f common/classroom/trace_table.awk rows`;
like($table, qr/^$stage\/\w+\n {30} +\d+ /m, 'make trace has it');
for (['make compare', $printed{compare}], ['make trace', $table], ['make help', scalar `make --no-print-directory help`],
     ['make exercise', scalar `make --no-print-directory DEVICE=cpu exercise`]) {
    is_deeply([grep { length > 120 } split /\n/, $_->[1]], [], "$_->[0]: lines of at most 120 characters");
}

# ---- what takes too long to run here: make knows it
for (['-n test-device', qr/prove\.pl .*\/grid_$stage .*\/figures_$stage /], ['-n trace TRACE=1', qr/cpu-trace\/$stage\/$stage/],
     ['-n sweep', qr/cpu\/$stage\/$stage/], ['help', qr/stages: .* $stage$/ms]) {
    my ($target, $has) = @$_;
    like(`make --no-print-directory $target 2>&1` =~ s/\\\n//gr, $has, "make $target has it");
}
my $inside = `cd $stage && make --no-print-directory 2>&1`;
like($inside, qr/^$stage\/$stage is built/m, 'make inside its folder');
is(system("make -s build/cpu/tests/figures_$stage >/dev/null 2>&1 && build/cpu/tests/figures_$stage >figures.txt 2>&1"), 0, 'its figures are right')
    or diag(`cat figures.txt`);

# ---- the tests that look at all stages or pages
for my $test ('pictures', 'rooms', 'stages', 'notes') {
    is(system("TEST_ALL= TEST_BUILD=build/cpu TEST_DEVICE=cpu perl tests/$test.t >$test.txt 2>&1"), 0, "tests/$test.t") or diag(`grep -A9 '^not ok\|^#' $test.txt`);
}

# ---- a variant and an option more: lines that go and come, in the file that the page has named last
my $file;
for my $piece ($page =~ /(`$stage\/[\w.]+`:\n|^```diff\n.*?^```$)/msg) {
    $file = $1, next if $piece =~ /`(\S+)`/ && $piece !~ /diff/;
    my @lines = grep { !/^```/ } split /^/, $piece;
    my ($from, $to) = map { my $sign = $_; join '', map { substr $_, 1 } grep { /^[ $sign]/ } @lines } '-', '+';
    my $text = read_text($file);
    is(() = $text =~ /\Q$from\E/g, 1, "$file has the lines once") or diag($from);
    write_text('>', $file, $text =~ s/\Q$from\E/$to/r);
}
my ($own) = $page =~ /^```sh own\n(.*?)^```$/ms;
my $output = `{ $own } 2>&1 </dev/null`;
is(() = $output =~ /^PASS  2 variants agree with 00_naive$/mg, 2, "both variants, in both orders: $own") or diag($output);
like($output, qr/^problem .*, order last$/m, 'and the heading says which');
for my $test ("grid_$stage --quick", "figures_$stage") {
    my ($program) = $test =~ /(\S+)/;
    is(system("make build/cpu/tests/$program DEVICE=cpu >make.txt 2>&1 && GRID_EVERY=24 build/cpu/tests/$test >test.txt 2>&1"), 0, "$test, with the variant and the option")
        or diag(`tail make.txt; grep -v '^ok' test.txt`);
}
is(system("TEST_ALL= TEST_BUILD=build/cpu TEST_DEVICE=cpu perl tests/options.t >options.txt 2>&1"), 0, 'tests/options.t') or diag(`grep -A9 '^not ok' options.txt`);
like(`make --no-print-directory trace-$stage DEVICE=cpu TRACE_OPTIONS='--heads 1 --seqlen 64 --variant wide --order last' 2>&1`, qr/^no races$/m, 'and traced');

chdir '/';
done_testing;

sub read_text { open my $in, '<:utf8', $_[0] or die "$_[0]: $!"; local $/; return <$in> }
sub write_text { open my $to, "$_[0]:utf8", $_[1] or die "$_[1]: $!"; print $to $_[2]; close $to or die "$_[1]: $!" }
