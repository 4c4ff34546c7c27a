# Exercises of notes/08_fa3.md.
exercise '08.1',
    ask => 'the bytes of K that wgmma reads at N = 512, D = 128, one head; and those that specialised reads',
    answer => sub {
        my ($trace) = @_;
        return map { sum_of({tensor => 'K'}, ['bytes_read'], $trace->("--variant $_ --heads 1 --seqlen 512 --head-dim 128")) }
            'wgmma', 'specialised';
    };

exercise '08.2',
    ask => 'causal, N = 512, D = 128, one head: how many tiles of 128 keys overlapped loads; and which part of their pairs the mask throws away, to one percent',
    within => 0.01,
    answer => sub {
        my ($trace) = @_;
        my @rows = $trace->('--variant overlapped --causal --heads 1 --seqlen 512 --head-dim 128');
        my $tiles = sum_of({tensor => 'K'}, ['bytes_read'], @rows) / (128 * 128 * 2);
        return ($tiles, 1 - 512 * 513 / 2 / ($tiles * 128 * 128));
    };

exercise '08.3',
    copy => '08_fa3/specialised.cu', change => 'STAGES = 1', changed => qr/STAGES = 1;/,
    ask => 'right or wrong: does it still agree with 00_naive?',
    check => sub {
        my ($answer, $run) = @_;
        my $result = $run->(qw(--variant specialised --iters 1 --head-dim 128 --causal));
        return $result->{reason} if $result->{code} eq '2';
        return $answer eq ($result->{code} eq '0' ? 'right' : 'wrong') ? '' : 'the program says otherwise';
    };

exercise '08.4',
    ask => 'S of the next tile and P V of this one, both started, and what each must wait for first',
    variant => 'overlapped',
    blank => {file => '08_fa3/overlapped.cu', from => 'start_qk(s, n + 1);', to => 'start_pv(o, a, n);'};
