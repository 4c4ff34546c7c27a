#!/usr/bin/env perl
# sweep.pl - latency of every variant over lengths, head dims and masks, as rows of notes/results/<device>/sweep.csv.
#
#     perl common/classroom/sweep.pl PROGRAM... -- OPTION...                                         (make sweep)
#
#     --lengths L      sequence lengths, with commas                             GPU 512,1024,...,65536; CPU 64,128,256
#     --tokens N       batch is N / length, at least 1                           GPU 16384; CPU 1
#     --hidden N       heads are N / head dim, at least 1                        GPU 2048; CPU 64
#     --head-dims D    with commas                                               GPU 128,64; CPU 64
#     --masks M        full,causal                                               both
#     --dtype T        as the programs take it                                   fp16
#     --limit S        leave a point out if it is predicted to take S seconds    GPU 3; CPU 20
#     --out FILE       instead of notes/results/<device>/sweep.csv
#
# Lengths above --tokens are there to see where the memory ends: only forward stages take them, without a mask.
#
# It can be interrupted and started again: a row that is in the file, skipped ones too, is not measured again. The key is stage,
# variant, shape, dtype and mask, not the commit: what the file has from another commit is counted and kept. Remove the file, or
# lines of it, to measure them anew.
#
# 07_flash_decoding has shapes of its own: one query, 32 heads in 8 groups, head dim 128, 1024 to 131072 keys; and beside
# sweep.csv a splits.tsv, latency over --splits.
use strict;
use warnings;
use FindBin;
use lib $FindBin::Bin;
use File::Path qw(make_path);
use File::Basename qw(dirname);
use POSIX qw(strftime);
use Rows;
$| = 1;

my @columns = qw(stage variant direction batch heads kv_heads seqlen_q seqlen_k head_dim dtype causal
                 latency_ms min_ms tflops gbps tensor_bytes workspace_bytes device clock_mhz cuda commit date note);
my @key = qw(stage variant batch heads kv_heads seqlen_q seqlen_k head_dim dtype causal);

# ---- the command line ----

my (@programs, %option);
while (@ARGV && $ARGV[0] ne '--') { push @programs, shift @ARGV }
shift @ARGV;
my $list = qr/^[1-9]\d*(,[1-9]\d*)*$/;
my %takes = ( # the form of an option's value, and how to say it
    'lengths' => [$list, 'whole numbers with commas between, like 512,1024'],
    'head-dims' => [$list, 'whole numbers with commas between, like 64,128'],
    'tokens' => [qr/^[1-9]\d*$/, 'a whole number'],
    'hidden' => [qr/^[1-9]\d*$/, 'a whole number'],
    'masks' => [qr/^(full|causal)(,(full|causal))?$/, 'full, causal or full,causal'],
    'dtype' => [qr/^(fp16|bf16|fp32)$/, 'fp16, bf16 or fp32'],
    'limit' => [qr/^\d+(\.\d+)?$/, 'seconds'],
    'out' => [qr/./, 'a file'],
);
while (@ARGV) {
    my ($name, $value) = splice @ARGV, 0, 2;
    my $known = $name =~ s/^--//r;
    my $takes = $name =~ /^--/ && $takes{$known};
    stop("$name: no such option, choose " . join(', ', map { "--$_" } sort keys %takes)) if !$takes;
    stop($name . (defined $value ? " $value" : '') . ": choose $takes->[1]") if !defined $value || $value !~ $takes->[0];
    $option{$known} = $value;
}
stop('usage: sweep.pl PROGRAM... -- OPTION...') if !@programs;

# A tiny run tells which device this is.
my $probe = measure($programs[0], qw(--batch 1 --heads 1 --seqlen 16 --seqlen-k 16 --head-dim 64 --iters 1 --no-validate));
my ($here) = @{$probe->{rows}} or stop("$programs[0] does not run: $probe->{reason}");
my $is_cpu = !defined $here->{cuda};
my %default = $is_cpu
    ? (lengths => '64,128,256', tokens => 1, hidden => 64, 'head-dims' => '64', limit => 20)
    : (lengths => '512,1024,2048,4096,8192,16384,32768,65536', tokens => 16384, hidden => 2048, 'head-dims' => '128,64',
       limit => 3);
my %o = (masks => 'full,causal', dtype => 'fp16', %default, %option);
my $folder = 'notes/results/' . lc($here->{device}) =~ s/[^a-z0-9]+/-/gr =~ s/^-|-$//gr;
my $file = $o{out} // "$folder/sweep.csv";
make_path(dirname($file));

# ---- what is there, what is to do ----

my (%rows, $kept, $from_elsewhere); # by key: the rows of the file
read_file();
my @series; # one variant at one head dim and mask: its points, by length. The last stages first: the slowest ones can wait
for my $head_dim (split /,/, $o{'head-dims'}) {
    for my $mask (split /,/, $o{masks}) {
        for my $program (reverse @programs) {
            next if is_decoding($program);
            push @series, {points => [attention_points($program, $head_dim, $mask)], program => $program, variant => $_}
                for reverse variants_of($program);
        }
    }
}
for my $program (grep { is_decoding($_) } @programs) {
    push @series, {points => [decoding_points()], program => $program, variant => $_} for variants_of($program);
}
my $total = 0;
$total += @{$_->{points}} for @series;
print "$file: $kept rows are there", $from_elsewhere ? ", $from_elsewhere of them from another commit" : '', "\n" if $kept;

open(my $out, '>>', $file) or stop("$file: $!");
$out->autoflush(1);
print $out join(',', @columns), "\n" if -z $file;
my ($at, $broken) = (0, 0);
for my $series (@series) {
    run_series($series);
    $at += @{$series->{points}};
}
show_progress();
print "$file: $total points", $broken ? ", $broken of them broken; the next sweep tries them again" : '', "\n";
my ($decoding) = grep { is_decoding($_) } @programs;
split_curve($decoding) if $decoding;
exit($broken ? 1 : 0);

# ---- the points ----

sub is_decoding { return stage_of($_[0]) =~ /decoding/ }

sub attention_points {
    my ($program, $head_dim, $mask) = @_;
    my $is_forward = stage_of($program) !~ /backward|fp8/;
    my $heads = int($o{hidden} / $head_dim) || 1;
    my @lengths = sort { $a <=> $b } split /,/, $o{lengths};
    @lengths = grep { $_ <= $o{tokens} || $is_cpu || ($is_forward && $mask eq 'full') } @lengths;
    return map { {batch => int($o{tokens} / $_) || 1, heads => $heads, kv_heads => $heads, seqlen_q => $_, seqlen_k => $_,
                  head_dim => $head_dim, dtype => $o{dtype}, causal => $mask eq 'causal' ? 'true' : 'false'} } @lengths;
}

sub decoding_points {
    my @keys = map { 2**$_ } $is_cpu ? (8 .. 10) : (10 .. 17);
    my ($heads, $kv_heads, $head_dim) = $is_cpu ? (8, 2, 64) : (32, 8, 128);
    return map { {batch => 1, heads => $heads, kv_heads => $kv_heads, seqlen_q => 1, seqlen_k => $_, head_dim => $head_dim,
                  dtype => $o{dtype}, causal => 'false'} } @keys;
}

sub shape_options {
    my ($p) = @_;
    return ('--batch', $p->{batch}, '--heads', $p->{heads}, '--kv-heads', $p->{kv_heads}, '--seqlen', $p->{seqlen_q},
            '--seqlen-k', $p->{seqlen_k}, '--head-dim', $p->{head_dim}, '--dtype', $p->{dtype},
            $p->{causal} eq 'true' ? '--causal' : ());
}

# ---- one series ----

# Lengths in ascending order: each predicts the next, and after one that is out of memory there is nothing more to learn.
sub run_series {
    my ($series) = @_;
    my ($program, $variant) = @$series{qw(program variant)};
    my $stage = stage_of($program);
    my $name = $stage eq $variant ? $stage : "$stage/$variant";
    my $number = $at;
    my @measured; # of this series, in the order of length: [FLOPs, ms]
    for my $point (@{$series->{points}}) {
        $number++;
        my $key = key_of({%$point, stage => $stage, variant => $name});
        if (!$rows{$key}) {
            show_progress(sprintf '%d of %d: %s, seqlen %d, head_dim %d, %s ...', $number, $total, $name,
                          @$point{'seqlen_k', 'head_dim'}, $point->{causal} eq 'true' ? 'causal' : 'full');
            my @new = measure_point($program, $stage, $variant, $name, $point, predict($point, @measured));
            $broken++, last if !@new;
            record(@new);
        }
        my ($row) = @{$rows{$key}};
        last if $row->{note} =~ /memory/;
        next if $row->{latency_ms} eq '';
        push @measured, [flops($point), $row->{latency_ms}];
    }
}

# Milliseconds, from the last length and by how much it grew; undef: nothing to go by. The growth need not be that of the
# FLOPs: a variant with too few blocks for the chip takes four times as long at twice the length, whatever the batch.
sub predict {
    my ($point, @measured) = @_;
    return undef if !@measured;
    my ($flops, $ms) = @{$measured[-1]};
    my $growth = flops($point) / $flops;
    if (@measured > 1) {
        my $before = $measured[-2];
        my $seen = $ms / $before->[1];
        $growth = $seen if $seen > $growth;
    }
    return $ms * $growth;
}

sub flops { my ($p) = @_; return $p->{batch} * $p->{heads} * $p->{seqlen_q} * $p->{seqlen_k} * $p->{head_dim} }

# The rows of one point; none if the program broke. A program launches a variant at least three times: a first time, to warm
# up, and to be timed.
sub measure_point {
    my ($program, $stage, $variant, $name, $point, $predicted) = @_;
    if (defined $predicted && 3 * $predicted > 1000 * $o{limit}) {
        my $note = sprintf 'skipped: about %s a launch predicted', time_text($predicted);
        return filled($point, {stage => $stage, variant => $name, note => $note});
    }
    my @options = (shape_options($point), '--variant', $variant, '--no-validate');
    push @options, '--iters', $predicted > 300 ? 1 : 3 if defined $predicted && $predicted > 30; # else as the program chooses
    my $run = measure($program, @options);
    my @rows = own_rows($run, $stage);
    return @rows && $run->{code} !~ /signal/ ? map { filled($point, $_) } @rows : failed($point, $stage, $name, $run);
}

# Exit code 2: it cannot run here, and says why (the inputs do not fit, ...): that is a result. All else is an accident.
sub failed {
    my ($point, $stage, $name, $run) = @_;
    return filled($point, {stage => $stage, variant => $name, note => $run->{reason}}) if $run->{code} eq '2';
    show_progress();
    my $how = $run->{code} =~ /signal/ ? "ended by $run->{code}" : "exit code $run->{code}";
    print "$name, seqlen $point->{seqlen_k}: $how", $run->{reason} ne '' ? ": $run->{reason}" : '', "\n";
    return;
}

sub filled {
    my ($point, $row) = @_;
    my %row = (direction => 'forward', (map { $_ => $here->{$_} } qw(device clock_mhz cuda commit)), %$row, %$point,
               date => strftime('%Y-%m-%d', gmtime));
    return {map { $_ => $row{$_} // '' } @columns};
}

# ---- the file ----

sub key_of { my ($row) = @_; return join ' ', @$row{@key} }

sub read_file {
    ($kept, $from_elsewhere) = (0, 0);
    open(my $in, '+<', $file) or return;
    my $whole = 0; # bytes of whole lines
    my $heading = <$in> // '';
    stop("$file: has other columns than this sweep writes: move it away")
        if $heading =~ /\n/ && $heading ne join(',', @columns) . "\n";
    $whole = length $heading if $heading =~ /\n/;
    my ($is_cut, @found) = (0);
    while ($whole && defined(my $line = <$in>)) {
        $is_cut = $line !~ /\n$/ and last;
        my %row;
        @row{@columns} = map { s/^"(.*)"$/$1/r =~ s/""/"/gr } $line =~ s/\n$//r =~ /("(?:[^"]|"")*"|[^,]*)(?:,|$)/g;
        push @found, [key_of(\%row), length $line, \%row];
        $whole += length $line;
    }
    # An interrupted write leaves a piece of a line, and perhaps only some rows of its point: the last point goes, too.
    my $last = $is_cut && @found ? $found[-1][0] : '';
    $whole -= (pop @found)->[1] while @found && $found[-1][0] eq $last;
    truncate($in, $whole) or stop("$file: $!");
    for (@found) {
        my ($key, undef, $row) = @$_;
        push @{$rows{$key}}, $row;
        $kept++;
        $from_elsewhere += $row->{commit} ne $here->{commit};
    }
}

# One write: the rows of a point are there together, or not at all.
sub record {
    my (@new) = @_;
    my $text = '';
    for my $row (@new) {
        push @{$rows{key_of($row)}}, $row;
        $text .= join(',', map { /[",]/ ? '"' . s/"/""/gr . '"' : $_ } @$row{@columns}) . "\n";
    }
    print $out $text or stop("$file: $!");
}

# ---- decoding: latency over --splits ----

sub split_curve {
    my ($program) = @_;
    my $path = dirname($file) . '/splits.tsv';
    if (-e $path) {
        print "$path is there\n";
        return;
    }
    my @options = $is_cpu ? qw(--heads 8 --kv-heads 2 --seqlen 1 --seqlen-k 512 --head-dim 64)
                          : qw(--batch 1 --heads 32 --kv-heads 8 --seqlen 1 --seqlen-k 65536 --head-dim 128);
    my @lines;
    for my $splits ($is_cpu ? (1, 2, 4, 'auto') : (1, 2, 4, 8, 12, 16, 24, 32, 33, 48, 64, 96, 128, 256, 'auto')) {
        show_progress("splits $splits ...");
        my $run = measure($program, @options, '--variant', 'split_k', '--no-validate', '--splits', $splits);
        my ($row) = own_rows($run, stage_of($program));
        next if !$row || !defined $row->{latency_ms};
        my @shares = map { $row->{$_} ? sprintf('%.0f %%', 100 * $row->{gbps} / $row->{$_}) : '' } qw(read_gbps copy_gbps);
        my @figures = (sprintf('%.1f', 1000 * $row->{latency_ms}), sprintf('%.4g', $row->{gbps}));
        push @lines, join("\t", $splits, @figures, @shares) . "\n";
    }
    show_progress();
    open(my $curve, '>', $path) or stop("$path: $!");
    print $curve "splits\tlatency, us\tGB/s\tof a read\tof a copy\n", @lines;
    close $curve or stop("$path: $!");
    print "$path: ", scalar @lines, " splits\n";
}

sub stop { print STDERR "sweep.pl: $_[0]\n"; exit 2 }
