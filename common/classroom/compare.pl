#!/usr/bin/env perl
# compare.pl - every stage on one problem, in one table; then the backward's, FP8's and decoding's own.
#
#     perl common/classroom/compare.pl PROGRAM... -- OPTION... [-- PROGRAM... -- OPTION...]          (make compare)
#
# Runs each program with --json and the options after its group. A stage that is out of memory, refuses the problem or
# crashes is a line that says so. Exit code: 0 all agree with 00_naive; 1 one does not, or a program broke; 2 nothing
# ran, or not all of it could be checked.
use strict;
use warnings;
use utf8;
use FindBin;
use lib $FindBin::Bin;
use Rows;
binmode STDOUT, ':utf8';
binmode STDERR, ':utf8';
$| = 1;

my (@groups, @words);
for my $word (@ARGV, '--') {
    push(@words, $word), next if $word ne '--';
    push @groups, [@words];
    @words = ();
}
push @groups, [] if @groups % 2;
if (!@{$groups[0]}) {
    print STDERR "usage: compare.pl PROGRAM... -- OPTION... [-- PROGRAM... -- OPTION...]\n";
    exit 2;
}
my $programs = grep { $_ % 2 == 0 } 0 .. $#groups;
my $total = 0;
$total += @{$groups[2 * $_]} for 0 .. $programs - 1;

my ($done, $agree, $broken, $section, %naive_ms, %seen) = (0, 0, 0, '');
my (@disagree, @unchecked, $device);
while (my ($names, $options) = splice @groups, 0, 2) {
    for my $program (@$names) {
        my $stage = stage_of($program);
        show_progress(sprintf '%s (%d of %d) ...', $stage, ++$done, $total);
        my $run = measure($program, @$options);
        show_progress();
        if (!@{$run->{rows}} && $run->{code} eq '2' && $run->{reason} =~ /^-/) { # a mistake in the options
            print STDERR "compare.pl: $run->{reason}\n";
            exit 2;
        }
        print_stage($stage, $run);
    }
}

print "\n";
if (@disagree || $broken) {
    print 'FAIL  ', join(', ', (@disagree ? "disagree: @disagree" : ()), ($broken ? "broken: $broken" : ())), "\n";
    exit 1;
}
if (@unchecked) {
    print "NOT CHECKED  @unchecked\n";
    exit 2;
}
print !$device ? "NOT RUN  nothing can run this problem here\n" : !$agree ? "not validated\n"
    : "PASS  $agree variant" . ($agree == 1 ? ' agrees' : 's agree') . " with 00_naive\n";
exit($device ? 0 : 2);

# One program's lines. A table begins where the problem, or what is computed of it, is another than before.
sub print_stage {
    my ($stage, $run) = @_;
    my @rows = @{$run->{rows}};
    if (@rows) {
        my $backward = grep { $_->{direction} eq 'backward' } @rows;
        my $problem = problem_of($rows[0]);
        my $this = ($backward ? 'forward and backward' : 'forward') . " · $problem";
        print_heading($this, $rows[0]) if $this ne $section;
        $section = $this;
    }
    for my $row (@rows) {
        my $key = problem_of($row) . " $row->{direction} $row->{variant}";
        next if $seen{$key}++; # every program runs 00_naive: the first will do
        print_row($row);
    }
    my @bad = map { $_->{variant} } grep { defined $_->{ok} && !$_->{ok} } own_rows($run, $stage);
    push @disagree, @bad;
    push @unchecked, map { $_->{variant} } grep { is_unchecked($_) } own_rows($run, $stage);
    $agree += grep { $_->{ok} && $_->{direction} ne 'both' && $_->{variant} ne '00_naive' } own_rows($run, $stage);
    if ($run->{code} =~ /signal/ || $run->{code} > 2 || ($run->{code} == 1 && !@bad)) {
        my $how = $run->{code} =~ /signal/ ? "ended by $run->{code}" : "exit code $run->{code}";
        printf "%-27s %s%s\n", $stage, $how, $run->{reason} ne '' ? ": $run->{reason}" : '';
        $broken .= ($broken ? ' ' : '') . $stage;
    } elsif (!@rows) {
        printf "%-27s not run: %s\n", $stage, $run->{reason};
    }
}

sub print_heading {
    my ($what, $row) = @_;
    if (!$device) {
        $device = $row->{device};
        print "device   $device", defined $row->{cuda} ? " · CUDA $row->{cuda}" : '', " · commit $row->{commit}\n";
    }
    print "\nproblem  $what\n";
    print_cells('variant', 'direction', 'latency', 'TFLOP/s', 'GB/s', 'tensors + workspace', 'vs naive',
                'worst error / allowed');
}

# It ran, and was compared, but rounding alone may change half of its result.
sub is_unchecked { return defined $_[0]{worst_error} && !defined $_[0]{ok} }

# Names to the left, numbers to the right.
sub print_cells { printf "%-27s %-20s %9s %8s %8s %22s %9s %22s\n", @_ }

sub print_row {
    my ($row) = @_;
    if (defined $row->{note} && !is_unchecked($row)) {
        printf "%-27s %-20s %s\n", $row->{variant}, $row->{direction}, $row->{note};
        return;
    }
    my $problem = problem_of($row) . " $row->{direction}";
    $naive_ms{$problem} = $row->{latency_ms} if $row->{variant} eq '00_naive';
    my $ratio = $naive_ms{$problem} ? three_digits($naive_ms{$problem} / $row->{latency_ms}) . '×' : '-';
    my $error = is_unchecked($row) ? 'not checked' : defined $row->{worst_error} ? sprintf '%.1e / %.1e', @$row{qw(worst_error allowed_error)} : '-';
    print_cells($row->{variant}, $row->{direction}, time_text($row->{latency_ms}),
                (map { $row->{$_} ? three_digits($row->{$_}) : '-' } 'tflops', 'gbps'),
                bytes_text($row->{tensor_bytes}) . ' + ' . bytes_text($row->{workspace_bytes}),
                $ratio, $error);
}
