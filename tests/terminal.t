#!/usr/bin/env perl
# terminal.t - no table and no --help is wider than the terminal, down to 80 columns; a file or a pipe gets all columns.
use strict;
use warnings;
use File::Temp qw(tempdir);
use Test::More;
use lib 'tests';
use Program qw(stages);

plan skip_all => 'the CPU device will do for scripts' if ($ENV{TEST_DEVICE} // 'cpu') ne 'cpu';
plan skip_all => 'script, which makes a terminal, is not here' if `script --version 2>&1` !~ /util-linux/;
my $build = $ENV{TEST_BUILD} // 'build/cpu';
my $scratch = tempdir(CLEANUP => 1);

# What a command prints on a terminal of so many columns; lines of progress that were wiped off are gone.
sub on_terminal {
    my ($columns, $command) = @_;
    open my $to, '>', "$scratch/line.sh" or die "$scratch: $!";
    print $to "stty cols $columns\n$command\n";
    close $to;
    local $ENV{TERM} = 'xterm';
    return `script -qec 'sh $scratch/line.sh' /dev/null </dev/null` =~ s/\r\n/\n/gr =~ s/[^\n]*\r\e\[K//gr;
}
sub too_long { my ($columns, $text) = @_; return join "\n", grep { length > $columns } split /\n/, $text }

my $small = '--seqlen 16 --heads 1 --iters 1';
for my $stage (stages()) {
    my $program = "$build/$stage/$stage";
    is(too_long(80, on_terminal(80, "$program $small")), '', "$stage: the table, 80 columns");
    my $help = on_terminal(80, "$program --help");
    is(too_long(80, $help), '', "$stage: --help, 80 columns");
    is(join(' ', split ' ', $help), join(' ', split ' ', `$program --help`), '... says all that a pipe gets');
}
my $table = on_terminal(80, "$build/05_fa2_backward/05_fa2_backward $small");
like($table, qr/^variant +direction bytes moved FLOPs\/byte +error \/ allowed$/m, 'the memory goes first, then the time');
like(on_terminal(120, "$build/05_fa2_backward/05_fa2_backward $small"), qr/^variant +direction simulated bytes moved .* tensors \+ workspace /m,
    'at 120 columns all are there');

my $rows = join '', map { `sh common/classroom/rows.sh $build/$_/$_ $small` } '00_naive', '06_fp8', '10_block_sparse';
open my $to, '>', "$scratch/rows" or die "$scratch: $!";
print $to $rows;
close $to;
my $compare = "sh common/classroom/table.sh compare <$scratch/rows";
is(too_long(80, on_terminal(80, $compare)), '', 'make compare, 80 columns');
like(on_terminal(80, $compare), qr/^variant +bytes moved +vs fewest +error \/ allowed$/m, '... leaves out what is known from elsewhere');
like(`$compare`, qr/^variant +bytes moved +vs fewest +FLOPs\/byte +simulated +tensors \+ workspace +error \/ allowed$/m, '... and a pipe gets all');
open $to, '>', "$scratch/traced" or die "$scratch: $!";
print $to qq({"variant": "00_naive", "attention_flops": 100, "requested_bytes": 100, "unique_bytes": 10}\n);
close $to;
my $trace = "sh common/classroom/table.sh trace_table <$scratch/traced";
is(too_long(80, on_terminal(80, $trace)), '', 'make trace, 80 columns');
cmp_ok(too_long(80, `$trace`), 'ne', '', '... and a pipe gets all');
is(too_long(80, on_terminal(80, 'sh common/classroom/exercise.sh')), '', 'make exercise, 80 columns');
done_testing;
