#!/usr/bin/env perl
# pictures.t - every lesson has a picture, every stage a colour; pictures are legible; a user's plots leave the notes' pictures alone.
#
#     prove tests/pictures.t
use strict;
use warnings;
use Cwd qw(getcwd);
use File::Temp qw(tempdir);
use Test::More;
use lib 'tests';
use Program qw(stages new_stages read_text write_text);

plan skip_all => 'the CPU device will do for scripts' if ($ENV{TEST_DEVICE} // 'cpu') ne 'cpu';
my ($scratch, $root) = (tempdir(CLEANUP => 1), getcwd);
my $plots = "$root/common/plots/plots.py";

# A panel has at most eight lines with a name, which stands at the line's end; two variants of a stage never differ by their marker alone.
for my $plot ('latency', 'tflops', 'backward', 'sparse') {
    my %names;
    $names{$_}++ for read_text("notes/pictures/$plot.svg") =~ />((?:\d\d_\w+(?:\/[\w+]+)?|cuDNN|Flash\w+-\d)[^<]*)</g;
    my ($panels) = map { scalar(() = /D = \d+/g) } read_text("notes/pictures/$plot.svg") =~ s/heads = \d+ \/ D//r;
    my $total = 0;
    $total += $_ for values %names;
    cmp_ok($total, '<=', 8 * $panels, "$plot: $total names in $panels panels");
    cmp_ok($total, '>=', 4, '... and some');
}
for my $plot (qw(ladder latency tflops backward sparse memory roofline splits fp8_errors)) {
    unlike(read_text("notes/pictures/$plot.svg"), qr/id="legend/, "$plot: names beside what they name, no legend");
}
{
    my %dashes;
    my ($marks) = read_text('common/plots/drawing.py') =~ /^MARKS = \{(.*?)^\}/ms;
    my %mark = $marks =~ /"([^"]+)": ".([^"]*)"/g;
    for my $panel ([qw(masked skipping overlapped)], [qw(wgmma specialised overlapped)], [qw(loop_swap split_q tall tuned)], [qw(quantise+mma quantise+wgmma)]) {
        my %seen;
        is(join(' ', grep { $seen{$mark{$_} // ''}++ } @$panel), '', "@$panel: different dashes");
    }
}

# Every note that teaches has a picture, and every picture a note.
my %without = map { $_ => 1 } qw(README glossary reference setup sources teaching_plan tuning solutions cpp labs), new_stages();
my %shown;
for my $note (glob('notes/*.md'), 'README.md') {
    my $text = read_text($note);
    my @pictures = $text =~ m{!\[[^\]]+\]\((?:notes/)?pictures/(\w+)\.svg\)}g;
    my $told = () = $text =~ m{pictures/moving_\w+\.svg\)\n\n(?:Look at|Watch) }g;
    is($told, scalar(grep { /^moving_/ } @pictures), "$note: a sentence below each picture that moves says what to look at");
    @shown{@pictures} = (1) x @pictures;
    my ($name) = $note =~ m{notes/(\w+)\.md};
    ok(@pictures > 0, "$note has a picture") if $name && !$without{$name};
}
is(join(' ', grep { !$shown{$_} } map { m{(\w+)\.svg} } glob 'notes/pictures/*.svg'), '', 'every picture is shown');
my $drawing = read_text('common/plots/drawing.py');
my %is_new = map { $_ => 1 } new_stages();
is(join(' ', grep { $drawing !~ /"$_": "#/ && !$is_new{$_} } stages()), '', 'every stage has a colour');

SKIP: {
    skip 'no python3 here', 1 if system('command -v python3 >/dev/null') != 0;
    mkdir "$scratch/without";
    write_text("$scratch/without/matplotlib.py", "raise ImportError('not here')\n");
    my $run = run("PYTHONPATH=$scratch/without python3 -B $plots");
    is("$run->{code} $run->{err}", "2 plots need matplotlib: install python3-matplotlib, or use pip install matplotlib\n", 'plots without matplotlib: one line');
    skip 'no matplotlib here', 1 if run("python3 -c 'import matplotlib'")->{code};

    skip 'make test-all draws', 1 if !$ENV{TEST_ALL};

    # A complaint on stderr is a letter too small, or one text over another.
    for my $again (1, 2) {
        for my $command ('common/plots/pictures.py', 'common/plots/plots.py notes/results/nvidia-h200') {
            $run = run("python3 -B $command $scratch/drawn$again");
            is("$run->{code} $run->{err}", '0 ', "$command: legible");
        }
    }
    my @drawn = map { m{(\w+\.svg)} } glob "$scratch/drawn1/*.svg";
    is("@drawn", join(' ', grep { !/^moving_/ } map { m{(\w+\.svg)} } glob 'notes/pictures/*.svg'),
       'all of notes/pictures but what moves (moving.t), and nothing else');
    my @changing = grep { read_text("$scratch/drawn1/$_") ne read_text("$scratch/drawn2/$_") } @drawn;
    is("@changing", '', 'twice the same, byte for byte');
    write_text("$scratch/crowded.py", <<END);
import sys
sys.path.insert(0, 'common/plots')
from drawing import save, sheet, write
sheet(100, 50)
write(50, 25, 'one')
write(52, 25, 'other')
write(50, 5, 'small', 5)
save('crowded.svg', '$scratch')
END
    is(run("python3 -B $scratch/crowded.py")->{err}, "crowded.svg: letters of 6.7 pixels: 'small'\n"
       . "crowded.svg: 'one' lies over 'other'\n", 'a crowded picture is complained of');

    # The tables of make compare, as compare.awk writes them; 00_naive did not run
    write_text("$scratch/tables.tsv", join "\n", "problem\tdevice\tvariant\taxis\tfigure\ttext\tbeside",
        (map { ("forward, batch 4, heads 16/16, seqlen $_, head_dim 128, fp16, full, blocks sink:128:1024\tNVIDIA H200\t00_naive\tlatency, ms\t0\t-\t-",
                map { "forward, batch 4, heads 16/16, seqlen $_->[0], head_dim 128, fp16, full, blocks sink:128:1024\tNVIDIA H200\t$_->[1]"
                      . "\tlatency, ms\t$_->[2]\t$_->[2] ms\t12.5% of the fastest" } [$_, '04_fa2/tuned', 1.39], [$_, '11_its_own/kernel', 0.02]) }
            '4096x4096', '16384x16384'), '');
    $run = run("python3 -B common/plots/compare.py $scratch/tables.tsv $scratch/compare.svg");
    is("$run->{code} $run->{out}$run->{err}", "0 $scratch/compare.svg\n", 'make compare PLOT=1: legible');
    my $drawn = read_text("$scratch/compare.svg");
    is(scalar(() = $drawn =~ /04_fa2\/tuned/g) . scalar(() = $drawn =~ /not run/g), '22', '... a panel for each table, with a line for each variant');
    like(run('make -n compare DEVICE=cpu PLOT=1')->{out}, qr/table\.sh compare plot=(\S+)\npython3 -B common\/plots\/compare\.py \1 \S+\.svg$/m, '... which make calls');

    # Results of the simulator: its speed is not drawn.
    run("mkdir -p $scratch/simulated");
    write_text("$scratch/simulated/sweep.csv", read_text('notes/results/nvidia-h200/sweep.csv') =~ s/,13\.0,([0-9a-f]+(?:-dirty)?,)/,,$1/gr);
    $run = run("python3 -B $plots $scratch/simulated");
    like($run->{out}, qr{^tflops\.svg: not drawn, the speed of the CPU device says nothing about a GPU$}m, "the simulator's TFLOP/s are not drawn");
    ok(!-e "$scratch/simulated/pictures/tflops.svg" && -s "$scratch/simulated/pictures/memory.svg", '... but the memory is');

    # A tree with somebody's results beside those of the notes.
    my ($mine, $notes) = map { "$scratch/tree/notes/results/$_" } 'my-gpu', 'nvidia-h200';
    run("mkdir -p $mine $notes $scratch/tree/common $scratch/tree/notes/pictures");
    run("cp common/ladder.txt $scratch/tree/common");
    run("cp notes/results/nvidia-h200/ladder.jsonl $notes && cp $notes/ladder.jsonl $mine");
    write_text("$scratch/tree/notes/pictures/ladder.svg", 'as it was');
    utime 1, 1, "$notes/ladder.jsonl";
    my ($recipe) = run('make -n plots PLOT_OPTIONS=')->{out} =~ /(python3 -B .*)/;
    $run = run("ln -s $root/common/plots $scratch/tree/common/plots && cd $scratch/tree && $recipe");
    like($run->{out}, qr{^plots of notes/results/my-gpu, into notes/results/my-gpu/pictures$}m, 'make plots: the results measured last');
    ok(-s "$mine/pictures/ladder.svg", 'into a folder beside them');
    is(read_text("$scratch/tree/notes/pictures/ladder.svg"), 'as it was', "the notes' pictures are left alone");
    like(run('make -n pictures')->{out}, qr{pictures\.py .*plots\.py notes/results/nvidia-h200 notes/pictures$}m, 'make pictures draws all of them');
    $run = run("python3 -B $plots nowhere");
    is("$run->{code} $run->{err}", "2 plots.py: nowhere: choose a folder of notes/results\n", 'no such folder');
}
done_testing;

sub run {
    my ($line) = @_;
    my $out = `{ $line; } 2>'$scratch/err' </dev/null`;
    return {code => $? >> 8, out => $out, err => read_text("$scratch/err")};
}
