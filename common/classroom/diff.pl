#!/usr/bin/env perl
# diff.pl - the lesson between two kernels: what the second changes in the first.
#
#     perl common/classroom/diff.pl 03-04          the last variant of stage 03 and the first of stage 04 (make diff-03-04)
#     perl common/classroom/diff.pl 04.1-04.2      the first and the second variant of stage 04
#     perl common/classroom/diff.pl 04.3-06.1      any two
#
# Variants are numbered in the order of the stage's main.c; the kernel of variant X is <stage>/X.cu. In colour on a terminal.
use strict;
use warnings;

my @stages = map { s{/main\.c}{}r } sort glob '0?_*/main.c';
my $asked = shift // '';
my ($old, $new) = $asked =~ /^(\d\d(?:\.\d)?)-(\d\d(?:\.\d)?)$/
    or stop(($asked eq '' ? '' : "$asked: ") . 'choose two kernels, like 03-04 or 04.1-04.2');
my ($from, $to) = (kernel($old, -1), kernel($new, 0));
my $text = `diff -ub --label '$from' --label '$to' '$from' '$to'`;
stop('diff is not installed') if $? >> 8 > 1;

my @lines = split /\n/, $text;
my $added = grep { /^\+(?!\+\+ )/ } @lines;
my $removed = grep { /^-(?!-- )/ } @lines;
my %colour = ('+' => 32, '-' => 31, '@' => 36);
for (@lines) {
    my $code = /^(?:\+\+\+|---) / ? 1 : $colour{substr $_, 0, 1};
    print -t STDOUT && $code ? "\e[${code}m$_\e[0m\n" : "$_\n";
}
print "\n$from to $to: $removed lines go, $added come\n";

# A kernel file by number: "04.2", or "04" and which variant stands for the stage.
sub kernel {
    my ($number, $standing) = @_;
    my ($stage_number, $variant) = split /\./, $number;
    my ($stage) = grep { /^$stage_number/ } @stages;
    stop("$stage_number: there is no such stage, choose from " . join(', ', map { substr $_, 0, 2 } @stages)) if !$stage;
    my @files = files_of($stage);
    return $files[$standing] if !defined $variant;
    return $files[$variant - 1] if $variant >= 1 && $variant <= @files;
    stop("$number: choose from " . join(', ', map { "$stage_number." . ($_ + 1) . " ($files[$_])" } 0 .. $#files));
}

sub files_of {
    my ($stage) = @_;
    open(my $in, '<', "$stage/main.c") or stop("$stage/main.c: $!");
    my $table = do { local $/; <$in> } =~ s/.*?\.variants\s*=//sr;
    my @files = grep { -e } map { "$stage/$_.cu" } $table =~ /\.name\s*=\s*"(\w+)"/g;
    return @files ? @files : glob "$stage/*.cu"; # 00_naive has no variants
}

sub stop { print STDERR "diff.pl: $_[0]\n"; exit 2 }
