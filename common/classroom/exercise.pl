#!/usr/bin/env perl
# exercise.pl - says whether an exercise of the notes is solved.                                     (make exercise N=04.1)
#
#     perl common/classroom/exercise.pl                     lists them
#     perl common/classroom/exercise.pl 04.1                what is asked; for an exercise with a file, makes or checks that
#     perl common/classroom/exercise.pl 04.1 -- 52224       checks an answer: numbers, with commas between
#     perl common/classroom/exercise.pl --solve 04.1        prints the answer
#
# Exit code: 0 right, or told what is asked; 1 not yet; 2 it cannot be checked, and one line says why.
#
# Exercise k of notes/NN_name.md is NN.k. notes/exercises/NN_name.pl defines how it is checked, with calls of exercise():
#
#     ask       what is to be answered, for which
#     answer    computes it: called with a function that runs the trace with some options, returns a list of numbers. They
#               come from what the kernels do, not from that file.
#     within    how far off an answer may be, as a share of the right one; 0 unless given
#     copy      a kernel file. The first call copies it to exercises/NN.k/; the answer is then that of the edited copy,
#     change    which has to be changed so,
#     changed   and is if it matches this
#     check     instead of answer: called with the answer as text and a function that runs the program built with the copy;
#               returns why it is not right, or ''
#     gpu       1: only a GPU can tell
#     blank     {file, from, to}: the lines from the one with `from` to the next one with `to` are cut out of the real
#               kernel, into exercises/NN.k/. The student writes them anew; right is what the stage's grid finds no fault in.
#     stub      lines to leave in their place, so that it compiles
#     variant   of which the blank is part
use strict;
use warnings;
use FindBin;
use lib $FindBin::Bin;
use File::Basename qw(basename);
use File::Copy qw(copy);
use File::Path qw(make_path);
use File::Temp qw(tempdir);
use JSON::PP;
use Rows;
$| = 1;

my $make = $ENV{MAKE} || 'make';
my $out = $ENV{OUT} || 'build/cpu';                          # where the build for $device is
my $device = $ENV{DEVICE} || ($out =~ /cuda/ ? 'cuda' : 'cpu');
my $trace_out = 'build/cpu-trace';

my (%exercises, @order);
sub exercise {
    my ($number, %what) = @_;
    push @order, $number;
    my ($stage) = map { s{/main\.c}{}r } glob substr($number, 0, 2) . '_*/main.c';
    $exercises{$number} = {%what, number => $number, stage => $stage, folder => "exercises/$number"};
}
for my $file (sort glob 'notes/exercises/*.pl') {
    defined(do "./$file") or stop("$file: " . ($@ || $!));
}

my $solve = @ARGV && $ARGV[0] eq '--solve' && shift @ARGV;
my ($number, $dashes, $answer) = @ARGV;
if (!defined $number) {
    printf "%s  %s\n", $_, headline($exercises{$_}) for @order;
    print "make exercise N=04.1: what is asked. With ANSWER=...: is it right?\n";
    exit 0;
}
$number = "0$number" if $number =~ /^\d\./;
my $e = $exercises{$number} or stop("N=$number: there is no such exercise, choose from " . join(' ', @order));
my $has_program = $e->{stage} && -e "$e->{stage}/main.c" or stop("N=$number: its stage is not here");
stop("N=$number needs a GPU: what it asks for is measured there") if $e->{gpu} && $device ne 'cuda';

if ($solve) {
    stop("N=$number has no numbers to print") if !$e->{answer};
    print join(',', computed()), "\n";
} elsif ($e->{blank}) {
    fill_in();
} else {
    question();
}
exit 0;

# ---- a question ----

sub question {
    my $is_new = $e->{copy} && make_copy();
    if (!defined $answer) {
        print "$number  $e->{ask}\n";
        if ($e->{copy}) {
            my $file = copy_of($e->{copy});
            print $is_new ? "$file is a copy of $e->{copy} to work on" : "Your copy is $file", ". In it: $e->{change}.\n";
        }
        print "Then: make exercise N=$number ANSWER=...\n";
        return;
    }
    if ($e->{copy}) {
        my $file = copy_of($e->{copy});
        not_yet("in $file is still to be done: $e->{change}") if read_text($file) !~ $e->{changed};
    }
    if ($e->{check}) {
        my $why = $e->{check}->($answer, \&run_copy);
        not_yet($why) if $why ne '';
        right();
    }
    my @given = split /[,\s]+/, $answer =~ s/^\s+|\s+$//gr;
    my $number = qr/^[-+]?(\d+\.?\d*|\.\d+)(e[-+]?\d+)?%?$/i;
    stop("ANSWER=$answer: choose numbers, with commas between") if !@given || grep { $_ !~ $number } @given;
    my @right = computed();
    stop("ANSWER=$answer: choose " . @right . ' number' . (@right == 1 ? '' : 's') . ", $e->{ask}") if @given != @right;
    my @wrong = grep { abs($given[$_] =~ s/%//r - $right[$_]) > ($e->{within} // 0) * abs($right[$_]) + 1e-9 } 0 .. $#right;
    right() if !@wrong;
    not_yet(@right == 1 ? "it is not $given[0]" : join(', ', map { "number " . ($_ + 1) . " is not $given[$_]" } @wrong));
}

sub computed {
    make_copy() if $e->{copy};
    return $e->{answer}->(\&trace);
}

# ---- a copy to work on ----

sub copy_of { return "$e->{folder}/" . basename($_[0]) }

# 1: it was not there before. What is there is never written over.
sub make_copy {
    my $file = copy_of($e->{copy});
    return 0 if -e $file;
    make_path($e->{folder});
    copy($e->{copy}, $file) or stop("$file: $!");
    return 1;
}

# Builds something, perhaps with the files of the exercise in place of the stage's.
sub build {
    my ($target, @variables) = @_;
    show_progress("building ...");
    my $log = `$make --no-print-directory @variables '$target' 2>&1`;
    my $failed = $?;
    show_progress();
    return if !$failed;
    my ($error) = $log =~ /^(.*\berror\b.*)$/m;
    not_yet('it does not compile: ' . ($error // $log));
}
sub with_copy { return ("EXERCISE=$number", "EXERCISE_STAGE=$e->{stage}") }

sub run_copy {
    my (@options) = @_;
    my $program = "$out/exercises/$number/$e->{stage}";
    build($program, with_copy(), "DEVICE=$device");
    show_progress('running ...');
    my $run = measure($program, @options);
    show_progress();
    return $run;
}

# ---- what the kernels do ----

# Runs the stage's trace, built with the student's copy if there is one. Returns its JSON rows; with $as = 'text' its table.
sub trace {
    my ($options, $as) = @_;
    my $program = $e->{copy} ? "$trace_out/exercises/$number/$e->{stage}" : "$trace_out/$e->{stage}/$e->{stage}";
    build($program, ($e->{copy} ? with_copy() : ()), 'DEVICE=cpu', 'TRACE=1');
    show_progress('tracing ...');
    my $text = `$program --trace $options @{[$as ? '' : '--json']} 2>&1`;
    show_progress();
    stop("the trace ended with exit code " . ($? >> 8) . ": $text") if $?;
    return $as ? $text : map { eval { decode_json($_) } // () } split /\n/, $text;
}

# The stage's own program, for what is not in the trace: rows of --json, or with --save the file it wrote.
sub program_rows {
    my (@options) = @_;
    my $program = "$out/$e->{stage}/$e->{stage}";
    build($program, "DEVICE=$device");
    my $run = measure($program, @options);
    stop("$program: $run->{reason}") if !@{$run->{rows}};
    return @{$run->{rows}};
}
sub saved_lse {
    my (@options) = @_;
    my $folder = tempdir(CLEANUP => 1);
    program_rows(@options, '--save', $folder);
    my $npy = read_text("$folder/lse.npy");
    return unpack 'f<*', substr $npy, 10 + unpack 'v', substr $npy, 8, 2; # after the header; bytes 8 and 9 are its length
}

# The sum of some fields over the trace's rows in which `where` holds.
sub sum_of {
    my ($where, $fields, @rows) = @_;
    my $sum = 0;
    for my $row (@rows) {
        next if grep { !defined $row->{$_} || $row->{$_} !~ /^(?:$where->{$_})$/ } keys %$where;
        $sum += $row->{$_} // 0 for @$fields;
    }
    return $sum;
}
sub shared_wavefronts { return sum_of({memory => '.*'}, ['wavefronts_read', 'wavefronts_written'], @_) }

# ---- lines to fill in ----

sub fill_in {
    my $blank = $e->{blank};
    my $file = copy_of($blank->{file});
    if (!-e $file) {
        my ($text, $first, $count) = cut();
        make_path($e->{folder});
        if ($file =~ /\.cuh$/) { # a header finds its way only into kernels beside it
            copy($_, copy_of($_)) or stop("$_: $!") for glob "$e->{stage}/*.cu";
        }
        write_text($file, $text);
        print "$number  $file is $blank->{file} with $count lines missing, at line $first: $e->{ask}.\n",
            "Write them, then: make exercise N=$number\n";
        return;
    }
    my $grid = "$out/exercises/$number/grid";
    build($grid, with_copy(), "DEVICE=$device");
    show_progress('trying shapes and masks ...');
    my $child = open(my $tap, '-|') // stop("fork: $!");
    if (!$child) {
        alarm 300; # lines that never end
        open STDERR, '>&', \*STDOUT;
        exec $grid, '--quick', $e->{variant} ? ('--variant', $e->{variant}) : ();
    }
    my ($passed, $failed, $last, @case) = (0, 0, ''); # @case: the first that fails, and how
    while (<$tap>) {
        chomp;
        $passed++ if /^ok /;
        $failed++ if /^not ok /;
        $last = $_ if /\S/ && !/^(ok|not ok|1\.\.|#)/;
        next if @case && $case[-1] =~ /out of bounds|past the end/; # that is enough of it
        $case[0] .= " $1", next if @case && /^#  +(.*)/; # a key length, a setting
        push @case, $1 if /^# (.*)/ && !/worst error/;
        push @case, $_ if @case && /^\w+\[batch/;
    }
    my $signal = close($tap) ? 0 : $? & 127;
    show_progress();
    right() if !$? && $passed && !$failed;
    not_yet('it fails for ' . join("\n         ", @case)) if $failed && @case;
    not_yet('it does not come to an end') if $signal == 14;
    not_yet($last ne '' ? "the device stopped it: $last" : "it ended by signal $signal");
}

# The kernel file without the blank, the line where it was, and how many lines went.
sub cut {
    my ($file, $from, $to) = @{$e->{blank}}{qw(file from to)};
    my $text = read_text($file);
    my $start = index $text, $from;
    stop("$number: '$from' is not in $file any more") if $start < 0;
    stop("$number: '$from' is in $file twice") if index($text, $from, $start + 1) >= 0;
    my $end = index $text, $to, $start;
    stop("$number: '$to' does not follow in $file any more") if $end < 0;
    $start = rindex($text, "\n", $start) + 1;
    $end = index($text, "\n", $end + length($to)) + 1;
    my $lines = substr $text, $start, $end - $start;
    my ($indent) = $lines =~ /^( *)/;
    my $place = "$indent/* YOUR LINES: $e->{ask} */\n" . join '', map { "$indent$_\n" } split /\n/, $e->{stub} // '';
    substr($text, $start, $end - $start) = $place;
    return ($text, 1 + (substr($text, 0, $start) =~ tr/\n//), $lines =~ tr/\n//);
}

# ---- words ----

sub headline {
    my ($e) = @_;
    return ($e->{blank} ? "fill in $e->{blank}{file}: " : $e->{copy} ? "change $e->{copy}: $e->{change}; " : '') . $e->{ask};
}

sub right { print "right\n"; exit 0 }
sub not_yet { my $why = shift; chomp $why; print "not yet: $why\n"; exit 1 }
sub stop { my $why = shift; chomp $why; print STDERR "exercise.pl: $why\n"; exit 2 }
sub read_text { open my $in, '<:raw', $_[0] or stop("$_[0]: $!"); local $/; return <$in> }
sub write_text { open my $to, '>:raw', $_[0] or stop("$_[0]: $!"); print $to $_[1]; close $to or stop("$_[0]: $!") }
