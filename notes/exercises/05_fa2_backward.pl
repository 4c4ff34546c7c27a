# Exercises of notes/05_fa2_backward.md.
exercise '05.1',
    ask => "the bytes that backward_atomic adds to dQ's accumulator for one head, N = 512, D = 128: full, and causal",
    answer => sub {
        my ($trace) = @_;
        return map { sum_of({kernel => 'backward_atomic', tensor => 'dQ accumulator'}, ['bytes_written'],
                            $trace->("--variant atomic --heads 1 --seqlen 512 --head-dim 128 $_")) } '', '--causal';
    };

exercise '05.2',
    ask => 'the shared-memory wavefronts of backward_atomic in the same full trace',
    answer => sub {
        my ($trace) = @_;
        return shared_wavefronts(grep { $_->{kernel} && $_->{kernel} eq 'backward_atomic' }
                                 $trace->('--variant atomic --heads 1 --seqlen 512 --head-dim 128'));
    };

exercise '05.3',
    ask => 'how many products of N x N x D two_pass really does',
    answer => sub {
        my ($trace) = @_;
        my $one = 2 * 256 * 256 * 64;
        return sum_of({kernel => '.*'}, ['mma_flops'], $trace->('--variant two_pass --heads 1 --seqlen 256 --head-dim 64')) / $one;
    };

exercise '05.4',
    ask => 'dS^T = P^T (dP^T - delta) of two neighbouring queries, as half of the operand ds_a',
    variant => 'two_pass',
    blank => {file => '05_fa2_backward/key_half.cuh', from => '/* at D = 128 dP needs the registers of S',
              to => 'p_ij.y * (dp_ij[1] - delta.y));'};
